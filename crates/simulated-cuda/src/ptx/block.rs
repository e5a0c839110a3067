//! The execution of a grid, block after block.

use super::kernel::{Fault, Kernel, Launch, Memory};
use super::layout::{Special, Uniform};
use super::limits::Limits;
use super::registers::{Frame, LANES};
use super::space::{Found, SITES, Space};
use super::warp::Warp;
use std::cell::RefCell;
use std::collections::BTreeMap;

thread_local! {
    /// Register files and memories of this thread's launches, kept for reuse.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

#[derive(Default)]
struct Scratch {
    files: Vec<u64>,
    shared: Vec<u64>,
    local: Vec<u64>,
}

/// The most threads in a block.
const MAX_THREADS: u64 = 1024;

/// Runs the blocks of a grid, all of them or a sample. Returns the bytes of global memory that they accessed.
pub fn run_grid(
    kernel: &Kernel,
    launch: &Launch,
    (arguments, memory): (&[u8], &dyn Memory),
    limits: &Limits,
) -> Result<u64, Fault> {
    let threads: u64 = launch.block.iter().map(|size| *size as u64).product();
    if threads == 0 || threads > MAX_THREADS || launch.grid.contains(&0) {
        return Err(Fault::Unsupported(format!(
            "a launch of {:?} blocks of {:?}",
            launch.grid, launch.block
        )));
    }
    let needed = kernel
        .params
        .iter()
        .map(|param| param.offset + param.size)
        .max()
        .unwrap_or(0);
    if arguments.len() < needed {
        return Err(Fault::Unsupported(format!(
            "{} bytes of arguments where {needed} are needed",
            arguments.len()
        )));
    }
    // Taken out instead of borrowed, so that a kernel launched from a callback gets its own.
    let mut scratch = SCRATCH.with(RefCell::take);
    let result = Grid::new(
        kernel,
        launch,
        (memory, arguments),
        threads as usize,
        &mut scratch,
    )
    .run(limits);
    SCRATCH.with(|kept| kept.replace(scratch));
    result
}

struct Grid<'a> {
    kernel: &'a Kernel,
    launch: &'a Launch,
    memory: &'a dyn Memory,
    arguments: &'a [u8],
    threads: usize,
    /// Words of one register file.
    words: usize,
    /// Bytes of one warp's local memory.
    local: usize,
    /// The most instructions of a warp.
    instructions: u64,
    accessed: u64,
    scratch: &'a mut Scratch,
}

/// Units of 16 bytes, for the widest accesses.
fn rounded(bytes: usize) -> usize {
    bytes.next_multiple_of(16)
}

impl<'a> Grid<'a> {
    fn new(
        kernel: &'a Kernel,
        launch: &'a Launch,
        (memory, arguments): (&'a dyn Memory, &'a [u8]),
        threads: usize,
        scratch: &'a mut Scratch,
    ) -> Grid<'a> {
        let words = kernel.layout.bytes.div_ceil(8);
        let local = rounded(kernel.local) * LANES;
        let warps = threads.div_ceil(LANES);
        let files = if kernel.barriers { warps } else { 1 };
        let shared = rounded(kernel.shared) + rounded(launch.dynamic_shared as usize);
        scratch
            .files
            .resize(scratch.files.len().max(words * files), 0);
        scratch.shared.clear();
        scratch.shared.resize(shared / 8, 0);
        scratch
            .local
            .resize(scratch.local.len().max(local * files / 8), 0);
        Grid {
            kernel,
            launch,
            memory,
            arguments,
            threads,
            words,
            local,
            instructions: u64::MAX,
            accessed: 0,
            scratch,
        }
    }

    fn run(mut self, limits: &Limits) -> Result<u64, Fault> {
        self.instructions = limits.instructions;
        let warps = self.threads.div_ceil(LANES);
        for file in 0..if self.kernel.barriers { warps } else { 1 } {
            self.fill(file);
        }
        let mut recent: [_; SITES] = std::array::from_fn(|_| Found::default());
        let sample = limits.sample;
        if let Some(blocks) = sample.and_then(|sample| sample.blocks(self.launch.grid)) {
            let mut blocks = blocks.into_iter();
            blocks.try_for_each(|block| self.block(block, &mut recent))?;
            return Ok(self.accessed);
        }
        let [x, y, z] = self.launch.grid;
        for z in 0..z {
            for y in 0..y {
                for x in 0..x {
                    self.block([x, y, z], &mut recent)?;
                }
            }
        }
        Ok(self.accessed)
    }

    fn frame(files: &mut [u64], words: usize, file: usize) -> Frame<'_> {
        Frame::new(&mut files[file * words..(file + 1) * words])
    }

    /// Writes the constants, the arguments and other values that are the same for the whole launch.
    fn fill(&mut self, file: usize) {
        let frame = Self::frame(&mut self.scratch.files, self.words, file);
        for (slot, bytes, uniform) in &self.kernel.layout.uniforms {
            let bits = match uniform {
                Uniform::Constant(bits) => *bits,
                Uniform::Argument(offset) => {
                    let mut bits = [0; 8];
                    bits[..*bytes].copy_from_slice(&self.arguments[*offset..*offset + *bytes]);
                    u64::from_le_bytes(bits)
                }
            };
            match bytes {
                1 => frame.fill(*slot, bits as u8),
                2 => frame.fill(*slot, bits as u16),
                4 => frame.fill(*slot, bits as u32),
                _ => frame.fill(*slot, bits),
            }
        }
    }

    /// Writes the special registers of a warp.
    fn identify(&self, frame: Frame, block: [u32; 3], warp: usize) {
        let first = (warp * LANES) as u32;
        let lanes =
            |f: &dyn Fn(u32) -> u32| -> [u32; LANES] { std::array::from_fn(|lane| f(lane as u32)) };
        let [width, height, _] = self.launch.block;
        for (slot, special) in &self.kernel.layout.specials {
            let values = match *special {
                Special::Thread(0) if height == 1 && self.launch.block[2] == 1 => {
                    lanes(&|lane| first + lane)
                }
                Special::Thread(0) => lanes(&|lane| (first + lane) % width),
                Special::Thread(1) => lanes(&|lane| (first + lane) / width % height),
                Special::Thread(_) => lanes(&|lane| (first + lane) / width / height),
                Special::Threads(axis) => [self.launch.block[axis]; LANES],
                Special::Block(axis) => [block[axis]; LANES],
                Special::Blocks(axis) => [self.launch.grid[axis]; LANES],
                Special::Lane => lanes(&|lane| lane),
                Special::Warp => [warp as u32; LANES],
                Special::Warps => [self.threads.div_ceil(LANES) as u32; LANES],
                Special::LaneMask(0) => lanes(&|lane| 1 << lane),
                Special::LaneMask(1) => lanes(&|lane| (1 << lane) - 1),
                Special::LaneMask(2) => lanes(&|lane| u32::MAX >> (31 - lane)),
                Special::LaneMask(3) => lanes(&|lane| !(u32::MAX >> (31 - lane))),
                Special::LaneMask(_) => lanes(&|lane| u32::MAX << lane),
                Special::DynamicShared => [self.launch.dynamic_shared; LANES],
                Special::Zero32 => [0; LANES],
                Special::Zero64 => {
                    frame.fill(*slot, 0u64);
                    continue;
                }
            };
            frame.write(*slot, &values, u32::MAX);
        }
    }

    fn block(&mut self, block: [u32; 3], recent: &mut [Found; SITES]) -> Result<(), Fault> {
        let count = self.threads.div_ceil(LANES);
        let mut warps: Vec<Warp> = (0..count)
            .map(|warp| {
                let lanes = (self.threads - warp * LANES).min(LANES);
                Warp::new(
                    self.kernel.start,
                    u32::MAX >> (LANES - lanes),
                    self.instructions,
                )
            })
            .collect();
        let mut fresh = true;
        loop {
            for (index, warp) in warps.iter_mut().enumerate() {
                let file = if self.kernel.barriers { index } else { 0 };
                let mut files = std::mem::take(&mut self.scratch.files);
                let frame = Self::frame(&mut files, self.words, file);
                if fresh {
                    self.identify(frame, block, index);
                }
                let Scratch { shared, local, .. } = &mut *self.scratch;
                let mut space = Space {
                    memory: self.memory,
                    globals: &self.kernel.globals,
                    params: &self.kernel.params,
                    arguments: self.arguments,
                    shared: bytes_of(shared),
                    local: &mut bytes_of(local)[file * self.local..(file + 1) * self.local],
                    recent,
                    accessed: &mut self.accessed,
                };
                let result = warp.run(&self.kernel.code, frame, &mut space);
                self.scratch.files = files;
                result?;
            }
            fresh = false;
            if warps.iter().all(Warp::finished) {
                return Ok(());
            }
            release(&mut warps)?;
        }
    }
}

/// Opens the barriers at which all their threads wait.
fn release(warps: &mut [Warp]) -> Result<(), Fault> {
    let mut arrived: BTreeMap<u32, (u32, Option<u32>)> = BTreeMap::new();
    let mut live = 0;
    for waiting in warps.iter().flat_map(|warp| &warp.waiting) {
        let count = waiting.mask.count_ones();
        live += count;
        let entry = arrived
            .entry(waiting.barrier)
            .or_insert((0, waiting.threads));
        entry.0 += count;
    }
    let mut opened = false;
    for (barrier, (count, wanted)) in arrived {
        if count >= wanted.unwrap_or(live) {
            opened = true;
            warps.iter_mut().for_each(|warp| warp.release(barrier));
        }
    }
    match opened {
        true => Ok(()),
        false => Err(Fault::Hang(
            "threads of a block wait at different barriers".to_owned(),
        )),
    }
}

/// The bytes of some words.
fn bytes_of(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: the same memory, of which every byte is initialised; bytes have no alignment to keep.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len() * 8) }
}
