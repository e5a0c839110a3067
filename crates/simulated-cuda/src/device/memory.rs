//! The memory of one device: its users, and the live addresses.

use std::collections::{BTreeMap, HashMap};

use super::clock::{Clocks, Mark, StreamKey};
use super::pool::{GRANULARITY, Pool};
use super::range::Range;
use crate::card::Card;
use crate::status::{Outcome, Status};

/// The pool behind `cuMemAlloc`. As with a real driver, small requests share pages.
pub const DIRECT: u64 = 0;
/// The device's default stream-ordered pool.
pub const DEFAULT_POOL: u64 = 1;

/// A live allocation.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// Bytes requested by the program, which may access no more.
    pub bytes: u64,
    pub pool: u64,
    /// The point of its stream from which on it may be used, unless that is at once.
    pub mark: Option<Mark>,
    /// The number of the place that allocated it, for the account.
    pub place: usize,
    /// Whether copies and memsets wrote to it what the host knows.
    pub is_known: bool,
    /// Whether a part of it is not known: what was copied there from another such block, or what kernels may have written.
    pub is_unknown: bool,
    /// Whether anything was written to it, where nothing is computed.
    pub is_written: bool,
}

/// The bytes of a device and their users.
#[derive(Debug)]
pub struct DeviceMemory {
    pub capacity: u64,
    /// Segments are multiples of this many bytes.
    pub segment: u64,
    /// Whether the driver enforces a pool's `maxSize`.
    pub honours_max_size: bool,
    pub fragmentation: bool,
    /// Whether a pool makes one block of free pages that are apart, as an H200's driver does. Without it a pool is pessimistic: it can
    /// only use what lies together.
    pub joins: bool,
    pub range: Range,
    pub pools: HashMap<u64, Pool>,
    pub current_pool: u64,
    next_pool: u64,
    pub live: BTreeMap<u64, Live>,
    /// Pinned host memory, which kernels and copies may use too.
    pub host: BTreeMap<u64, u64>,
    /// Bytes that another process holds.
    pub neighbour: u64,
    /// Bytes that contexts and libraries hold.
    pub overhead: u64,
    /// The most that they have held.
    pub most_overhead: u64,
}

impl DeviceMemory {
    pub fn new(capacity: u64, segment: u64) -> DeviceMemory {
        DeviceMemory {
            capacity,
            segment,
            honours_max_size: true,
            fragmentation: false,
            joins: Card::get().joins,
            range: Range::reserve(capacity),
            pools: HashMap::from([(DIRECT, Pool::new(None)), (DEFAULT_POOL, Pool::new(None))]),
            current_pool: DEFAULT_POOL,
            next_pool: DEFAULT_POOL + 1,
            live: BTreeMap::new(),
            host: BTreeMap::new(),
            neighbour: 0,
            overhead: 0,
            most_overhead: 0,
        }
    }

    /// Bytes reserved by pools, including the pool of direct allocations.
    pub fn reserved(&self) -> u64 {
        self.pools.values().map(|pool| pool.reserved.current).sum()
    }

    /// Bytes that are not free.
    pub fn used(&self) -> u64 {
        self.neighbour + self.overhead + self.reserved()
    }

    pub fn free_bytes(&self) -> u64 {
        self.capacity.saturating_sub(self.used())
    }

    /// Bytes requested by the program's live allocations.
    pub fn live_bytes(&self) -> u64 {
        self.live.values().map(|live| live.bytes).sum()
    }

    /// Takes bytes for a context or a library.
    pub fn take_overhead(&mut self, bytes: u64) -> Outcome {
        if self.free_bytes() < bytes {
            return Err(Status::OUT_OF_MEMORY);
        }
        self.overhead += bytes;
        self.most_overhead = self.most_overhead.max(self.overhead);
        Ok(())
    }

    /// Creates a pool. A limit is rounded up to whole segments.
    pub fn create_pool(&mut self, max_size: u64) -> u64 {
        let most = max_size
            .checked_next_multiple_of(self.segment)
            .unwrap_or(u64::MAX);
        let serial = self.next_pool;
        self.next_pool += 1;
        self.pools
            .insert(serial, Pool::new((max_size > 0).then_some(most)));
        serial
    }

    /// A pool that the program has not destroyed.
    pub fn pool(&mut self, serial: u64) -> Outcome<&mut Pool> {
        self.pools
            .get_mut(&serial)
            .filter(|pool| serial != DIRECT && !pool.destroyed)
            .ok_or(Status::INVALID_VALUE)
    }

    /// Destroys a pool; its memory stays until its last allocation is freed.
    pub fn destroy_pool(&mut self, serial: u64) -> Outcome {
        if serial == DEFAULT_POOL {
            return Err(Status::INVALID_VALUE);
        }
        self.pool(serial)?.destroyed = true;
        if self.current_pool == serial {
            self.current_pool = DEFAULT_POOL;
        }
        self.bury(serial);
        Ok(())
    }

    /// Removes a destroyed pool without live allocations.
    fn bury(&mut self, serial: u64) {
        let over = |pool: &Pool| pool.destroyed && pool.used.current == 0;
        if self.pools.get(&serial).is_some_and(over)
            && let Some(mut pool) = self.pools.remove(&serial)
        {
            for start in pool.dissolve() {
                self.range.remove(start);
            }
        }
    }

    /// Allocates from a pool, which grows by a segment if no free block fits. Other pools are never trimmed to make room: this is the
    /// pessimistic reading of CUDA's documentation.
    pub fn allocate(
        &mut self,
        serial: u64,
        bytes: u64,
        stream: StreamKey,
        clocks: &Clocks,
    ) -> Outcome<u64> {
        let full = Status::OUT_OF_MEMORY;
        let rounded = bytes.checked_next_multiple_of(GRANULARITY).ok_or(full)?;
        let growth = rounded.checked_next_multiple_of(self.segment).ok_or(full)?;
        let free = self.free_bytes();
        let pool = self.pools.get_mut(&serial).ok_or(Status::INVALID_VALUE)?;
        let address = match pool.take(rounded, stream, clocks) {
            Some(address) => address,
            None => {
                let mut may_grow =
                    growth <= free && (!self.honours_max_size || pool.may_grow(growth));
                if !may_grow && self.joins && serial != DIRECT {
                    for (start, bytes) in pool.give_up_pages(stream, clocks) {
                        self.range.cut(start, bytes);
                    }
                    let free = self.free_bytes();
                    let pool = self.pools.get(&serial).ok_or(Status::INVALID_VALUE)?;
                    may_grow = growth <= free && (!self.honours_max_size || pool.may_grow(growth));
                }
                if !may_grow {
                    return Err(full);
                }
                let pool = self.pools.get_mut(&serial).ok_or(Status::INVALID_VALUE)?;
                pool.grow(self.range.place(growth).ok_or(full)?, growth);
                pool.take(rounded, stream, clocks).ok_or(full)?
            }
        };
        self.live.insert(
            address,
            Live {
                bytes,
                pool: serial,
                mark: None,
                place: 0,
                is_known: false,
                is_unknown: false,
                is_written: false,
            },
        );
        Ok(address)
    }

    /// Whether the device itself has no room for a request that was refused: else it is a limit of the program's own, on its pool.
    pub fn is_full(&self, bytes: u64) -> bool {
        let growth = bytes.checked_next_multiple_of(self.segment);
        growth.is_none_or(|growth| growth > self.free_bytes())
    }

    /// Says from which point on an allocation may be used.
    pub fn mark_allocation(&mut self, address: u64, mark: Mark) {
        if let Some(live) = self.live.get_mut(&address) {
            live.mark = Some(mark);
        }
    }

    /// The allocation of device memory that contains an address.
    pub fn live_at(&self, address: u64) -> Option<Live> {
        let (&start, live) = self.live.range(..=address).next_back()?;
        (address < start + live.bytes).then_some(*live)
    }

    /// The same, to change what is known of it.
    pub fn live_at_mut(&mut self, address: u64) -> Option<&mut Live> {
        let (&start, live) = self.live.range_mut(..=address).next_back()?;
        (address < start + live.bytes).then_some(live)
    }

    /// The pinned memory that contains an address.
    fn pinned(&self, address: u64) -> Option<std::ops::Range<u64>> {
        let (&start, bytes) = self.host.range(..=address).next_back()?;
        (address < start + bytes).then_some(start..start + bytes)
    }

    /// Whether an address is in pinned memory.
    pub fn is_pinned(&self, address: u64) -> bool {
        self.pinned(address).is_some()
    }

    /// Frees an allocation. With a stream, other streams may reuse it only after the work that is now on that stream.
    pub fn free(
        &mut self,
        address: u64,
        stream: Option<StreamKey>,
        clocks: &mut Clocks,
    ) -> Outcome {
        let live = self.live.remove(&address).ok_or(Status::INVALID_VALUE)?;
        let mark = stream
            .filter(|_| live.pool != DIRECT)
            .map(|stream| clocks.mark(stream));
        if let Some(pool) = self.pools.get_mut(&live.pool) {
            pool.free(address, mark);
        }
        self.bury(live.pool);
        if live.pool == DIRECT {
            self.trim(DIRECT, 0, clocks)?;
        }
        Ok(())
    }

    /// Returns a pool's idle segments to the device while it has more than `keep` bytes reserved.
    pub fn trim(&mut self, serial: u64, keep: u64, clocks: &Clocks) -> Outcome {
        let pool = self.pools.get_mut(&serial).ok_or(Status::INVALID_VALUE)?;
        for start in pool.shrink(keep, clocks) {
            self.range.remove(start);
        }
        Ok(())
    }

    /// Shrinks every pool to its release threshold, as a synchronization does.
    pub fn release(&mut self, clocks: &Clocks) {
        for pool in self.pools.values_mut() {
            for start in pool.shrink(pool.release_threshold, clocks) {
                self.range.remove(start);
            }
        }
    }

    /// The live allocation of device memory or pinned host memory that contains an address.
    pub fn allocation(&self, address: u64) -> Option<std::ops::Range<u64>> {
        self.allocation_on_device(address)
            .or_else(|| self.pinned(address))
    }

    /// The live allocation of device memory that contains an address.
    pub fn allocation_on_device(&self, address: u64) -> Option<std::ops::Range<u64>> {
        let (&start, live) = self.live.range(..=address).next_back()?;
        let range = start..start + live.bytes;
        range.contains(&address).then_some(range)
    }

    /// Whether these bytes lie within one live allocation.
    pub fn covers(&self, address: u64, bytes: u64) -> bool {
        bytes == 0
            || self.allocation(address).is_some_and(|range| {
                address
                    .checked_add(bytes)
                    .is_some_and(|end| end <= range.end)
            })
    }
}

impl crate::ptx::Memory for DeviceMemory {
    fn allocation(&self, address: u64) -> Option<std::ops::Range<u64>> {
        DeviceMemory::allocation(self, address)
    }
}
