//! One simulated device with all its state, guarded by one lock.

pub mod account;
pub mod buffers;
pub mod clock;
pub mod contents;
pub mod copies;
pub mod counters;
pub mod faults;
pub mod late;
pub mod memory;
pub mod objects;
pub mod pages;
pub mod pool;
pub mod range;
pub mod segment;
pub mod trace;

use account::Account;
use clock::{Clocks, StreamKey};
use contents::Mode;
use copies::Copies;
use counters::Counters;
use faults::Faults;
use late::Late;
use memory::DeviceMemory;
use objects::Objects;
use trace::Trace;

use crate::card::Card;
use crate::counts;
use crate::handle::{Handle, Kind};
use crate::report;
use crate::status::{Outcome, Status};

/// Bytes that a cuBLAS handle takes, in place of its state.
pub const BLAS_BYTES: u64 = 64 << 10;
/// Bytes that it takes at its first computation, outside of all pools: both together are what an H200 showed.
pub const BLAS_WORKSPACE_BYTES: u64 = (2 << 20) - BLAS_BYTES;
/// Bytes that a cuDNN handle takes, in place of its state and its kernels.
pub const DNN_BYTES: u64 = 1 << 20;
/// Bytes that a cuRAND generator takes, in place of its states.
pub const RANDOM_BYTES: u64 = 64 << 10;
/// Blocks up to this size are poisoned when they are allocated; larger ones would take too much time.
const POISONED: u64 = 16 << 20;
/// The poison byte: a NaN in every floating-point type, and an index far out of bounds in every integer type.
const POISON: u8 = 0xff;

/// A device.
#[derive(Debug)]
pub struct Device {
    pub ordinal: usize,
    pub pools_supported: bool,
    /// Whether a thread without a context cannot even free memory on a created stream.
    pub frees_need_context: bool,
    /// Whether kernels, products and generators are executed.
    pub computes: bool,
    /// Whether only some blocks of large launches are, and no large products.
    pub samples: bool,
    pub memory: DeviceMemory,
    pub clocks: Clocks,
    pub objects: Objects,
    pub faults: Faults,
    pub trace: Trace,
    pub late: Late,
    pub copies: Copies,
    /// Counts of calls; [`Device::counters`] adds the state.
    pub counted: Counters,
    /// If the program's exit is reported.
    pub account: Option<Account>,
}

impl Device {
    pub fn new(ordinal: usize) -> Device {
        let mode = contents::mode();
        let memory = DeviceMemory::new(Card::get().memory, range::PAGE);
        if mode == Mode::Sample {
            memory.range.without_huge_pages();
        }
        Device {
            ordinal,
            pools_supported: true,
            frees_need_context: false,
            computes: mode != Mode::Allocate,
            samples: mode == Mode::Sample,
            memory,
            clocks: Clocks::default(),
            objects: Objects::default(),
            faults: Faults::default(),
            trace: Trace::default(),
            late: Late::new(),
            copies: Copies::default(),
            counted: Counters::default(),
            account: report::is_wanted().then(Account::default),
        }
    }

    /// The handle of an object of this device.
    pub fn handle(&self, kind: Kind, serial: u64) -> u64 {
        Handle {
            kind,
            device: self.ordinal,
            serial,
        }
        .raw()
    }

    /// Allocates on a stream, from a pool, unless a failure is injected.
    pub fn allocate(&mut self, pool: u64, bytes: u64, stream: StreamKey) -> Outcome<u64> {
        self.faults.check()?;
        self.counted.allocations += 1;
        let outcome = if self.faults.allocation.strikes() {
            Err(Status::OUT_OF_MEMORY)
        } else {
            self.memory.allocate(pool, bytes, stream, &self.clocks)
        };
        if let (Ok(address), true) = (outcome, pool != memory::DIRECT) {
            let mark = self.clocks.mark(stream);
            self.memory.mark_allocation(address, mark);
        }
        self.trace.note(|| match outcome {
            Ok(_) => format!("allocate {bytes}"),
            Err(Status(code)) => format!("allocate {bytes}: status {code}"),
        });
        match outcome {
            Ok(address) => {
                counts::allocation(pool != memory::DIRECT, bytes);
                self.counted.live_bytes += bytes;
                self.counted.peak_live_bytes =
                    self.counted.peak_live_bytes.max(self.counted.live_bytes);
                self.counted.peak_used = self.counted.peak_used.max(self.memory.used());
                if let Some(account) = &mut self.account
                    && let Some(live) = self.memory.live_at_mut(address)
                {
                    live.place = account.allocated(bytes);
                }
                if self.computes && !self.samples && bytes <= POISONED {
                    // SAFETY: the block was just placed in this device's mapping and nobody has its address yet.
                    unsafe { std::ptr::write_bytes(address as *mut u8, POISON, bytes as usize) };
                }
            }
            Err(_) => {
                counts::refused_allocation(bytes);
                self.counted.failed_allocations += 1;
                if let Some(account) = &mut self.account {
                    account.refused(bytes, !self.memory.is_full(bytes));
                }
            }
        }
        outcome
    }

    /// Frees on a stream, or at once without one. A lost context refuses and stores the free.
    pub fn free(&mut self, address: u64, stream: Option<StreamKey>) -> Outcome {
        if let Err(status) = self.faults.check() {
            self.counted.refused_frees += 1;
            self.faults.refused.push(address);
            return Err(status);
        }
        let live = self.memory.live.get(&address);
        let (bytes, place, pool) = live.map_or((0, 0, memory::DIRECT), |live| {
            (live.bytes, live.place, live.pool)
        });
        if let Some(stream) = stream {
            self.note_write(address..address + bytes, stream);
        }
        self.clear(address);
        self.memory.free(address, stream, &mut self.clocks)?;
        counts::free(pool != memory::DIRECT, bytes);
        self.counted.frees += 1;
        self.counted.live_bytes -= bytes;
        if let Some(account) = &mut self.account {
            account.freed(place, bytes);
        }
        self.trace.note(|| format!("free {bytes}"));
        Ok(())
    }

    /// Makes a lost context valid again and carries out the frees that it refused.
    pub fn clear_fault(&mut self) {
        self.faults.lost = None;
        self.forget_copies();
        for address in std::mem::take(&mut self.faults.refused) {
            // It fails if the program freed the block twice, as the second free would have without the fault.
            let _ = self.free(address, None);
        }
    }

    /// Lets the host wait for one stream, or for all work.
    pub fn synchronize(&mut self, stream: Option<StreamKey>) -> Outcome {
        self.faults.check()?;
        match stream {
            Some(stream) => self.clocks.finish_stream(stream),
            None => self.clocks.finish_all(),
        }
        self.synchronized();
        Ok(())
    }

    /// Finishes events and releases memory after a synchronization.
    pub fn synchronized(&mut self) {
        for event in self.objects.events.values_mut() {
            event.pending = 0;
        }
        self.settle_copies();
        self.counted.synchronizations += 1;
        self.memory.release(&self.clocks);
    }

    /// All counters.
    pub fn counters(&self) -> Counters {
        let objects = &self.objects;
        Counters {
            live_allocations: self.memory.live.len() as u64,
            live_events: objects.events.len() as u64,
            live_streams: objects.streams.len() as u64,
            live_modules: objects.modules.len() as u64,
            live_pools: self
                .memory
                .pools
                .iter()
                .filter(|(serial, pool)| **serial > 1 && !pool.destroyed)
                .count() as u64,
            live_libraries: (objects.blas.len() + objects.dnn.len() + objects.generators.len())
                as u64,
            live_host_bytes: self.memory.host.values().sum(),
            retained_contexts: objects.retained,
            device_used: self.memory.used(),
            device_capacity: self.memory.capacity,
            reserved_bytes: self.memory.reserved(),
            neighbour_bytes: self.memory.neighbour,
            lost_context: self.faults.lost.map_or(0, |status| u64::from(status.0)),
            ..self.counted
        }
    }

    /// Resets the counts of calls; peaks restart at the present state.
    pub fn reset_counters(&mut self) {
        let live_bytes = self.counted.live_bytes;
        self.counted = Counters {
            live_bytes,
            peak_live_bytes: live_bytes,
            peak_used: self.memory.used(),
            ..Counters::default()
        };
    }
}
