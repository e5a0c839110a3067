//! cuRAND: generators whose numbers depend only on the seed and the position (splitmix64). They are not cuRAND's own sequences.

use crate::counts;
use crate::device::faults::Lack;
use crate::device::objects::Generator;
use crate::device::{Device, RANDOM_BYTES};
use crate::driver::current;
use crate::handle::Kind;
use crate::simulator::of_handle;
use crate::status::{SUCCESS, Status, store};

const NOT_INITIALIZED: u32 = 101;
const ALLOCATION_FAILED: u32 = 102;
const OUT_OF_RANGE: u32 = 104;
const LENGTH_NOT_MULTIPLE: u32 = 105;
const LAUNCH_FAILURE: u32 = 201;
const INITIALIZATION_FAILED: u32 = 203;

const INTERNAL_ERROR: u32 = 999;

/// The status for a lack of device memory.
fn lack(device: &Device) -> u32 {
    match device.faults.lacks {
        Lack::Allocation => ALLOCATION_FAILED,
        Lack::NotInitialized => INITIALIZATION_FAILED,
        Lack::Internal => INTERNAL_ERROR,
        Lack::Execution => LAUNCH_FAILURE,
    }
}

type RandomResult = Result<(), u32>;

fn answer(body: impl FnOnce() -> RandomResult) -> u32 {
    counts::call(&body);
    body().err().unwrap_or(SUCCESS)
}

fn with(generator: u64, body: impl FnOnce(&mut Generator)) -> u32 {
    answer(|| {
        let (mut device, serial) =
            of_handle(generator, Kind::Random).map_err(|_| NOT_INITIALIZED)?;
        device
            .objects
            .generators
            .get_mut(&serial)
            .map(body)
            .ok_or(NOT_INITIALIZED)
    })
}

/// Creates a generator for the current device. All generator types behave the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn curandCreateGenerator(generator: *mut u64, _kind: u32) -> u32 {
    answer(|| {
        let mut device = current::sound_device().map_err(|_| INITIALIZATION_FAILED)?;
        if device.faults.library.strikes() {
            return Err(lack(&device));
        }
        let taken = device.memory.take_overhead(RANDOM_BYTES);
        taken.map_err(|_| lack(&device))?;
        let serial = device.objects.serial();
        device.objects.generators.insert(
            serial,
            Generator {
                stream: 0,
                seed: 0,
                position: 0,
            },
        );
        // SAFETY: the caller passes a place for one handle.
        unsafe { store(generator, device.handle(Kind::Random, serial)) }.map_err(|_| OUT_OF_RANGE)
    })
}

/// Destroys a generator.
#[unsafe(no_mangle)]
pub extern "C" fn curandDestroyGenerator(generator: u64) -> u32 {
    answer(|| {
        let (mut device, serial) =
            of_handle(generator, Kind::Random).map_err(|_| NOT_INITIALIZED)?;
        device
            .objects
            .generators
            .remove(&serial)
            .ok_or(NOT_INITIALIZED)?;
        device.memory.overhead -= RANDOM_BYTES;
        Ok(())
    })
}

/// Sets the seed and restarts the sequence.
#[unsafe(no_mangle)]
pub extern "C" fn curandSetPseudoRandomGeneratorSeed(generator: u64, seed: u64) -> u32 {
    with(generator, |state| (state.seed, state.position) = (seed, 0))
}

/// Sets the position in the sequence.
#[unsafe(no_mangle)]
pub extern "C" fn curandSetGeneratorOffset(generator: u64, offset: u64) -> u32 {
    with(generator, |state| state.position = offset)
}

/// Sets the stream of later numbers, which are drawn at once in any case.
#[unsafe(no_mangle)]
pub extern "C" fn curandSetStream(generator: u64, stream: u64) -> u32 {
    with(generator, |state| state.stream = stream)
}

/// The number at a position in a seed's sequence.
fn draw(seed: u64, position: u64) -> u64 {
    let mix = |mut bits: u64| {
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    };
    mix(mix(seed).wrapping_add(position.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// A number in (0, 1], as cuRAND's are.
fn unit(bits: u64) -> f64 {
    ((bits >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// Fills device memory with `number` of each position in the sequence.
fn fill<T>(generator: u64, to: u64, count: usize, number: impl Fn(u64, u64) -> T) -> u32 {
    answer(|| {
        let (mut device, serial) =
            of_handle(generator, Kind::Random).map_err(|_| NOT_INITIALIZED)?;
        let device: &mut Device = &mut device;
        device.faults.check().map_err(|_| LAUNCH_FAILURE)?;
        device.counted.library_calls += 1;
        device.trace.note(|| format!("random {count}"));
        if device.faults.library.strikes() {
            return Err(lack(device));
        }
        if !device.faults.launch().map_err(|_| LAUNCH_FAILURE)? {
            return Ok(());
        }
        // A number takes about so many operations.
        let does = device.does((count as u64).saturating_mul(16));
        let state = device
            .objects
            .generators
            .get_mut(&serial)
            .ok_or(NOT_INITIALIZED)?;
        let bytes = (count as u64)
            .checked_mul(size_of::<T>() as u64)
            .ok_or(OUT_OF_RANGE)?;
        if !device.memory.covers(to, bytes) {
            eprintln!(
                "simulated CUDA: cuRAND: {bytes} bytes at {to:#x} are not within one live allocation"
            );
            device.faults.lost = Some(Status::ILLEGAL_ADDRESS);
            return Ok(());
        }
        counts::library(0, bytes);
        if !does {
            state.position += count as u64;
            return Ok(());
        }
        for index in 0..count {
            let value = number(state.seed, state.position + index as u64);
            // SAFETY: the place lies in the live allocation that was just checked, while the device is locked.
            unsafe { (to as *mut T).add(index).write_unaligned(value) };
        }
        state.position += count as u64;
        Ok(())
    })
}

/// Uniform numbers in (0, 1].
#[unsafe(no_mangle)]
pub extern "C" fn curandGenerateUniform(generator: u64, to: u64, count: usize) -> u32 {
    // From 24 bits, which an `f32` holds exactly, so that 0 never occurs and 1 can.
    fill(generator, to, count, |seed, at| {
        ((draw(seed, at) >> 40) + 1) as f32 / (1u64 << 24) as f32
    })
}

/// Uniform numbers in (0, 1].
#[unsafe(no_mangle)]
pub extern "C" fn curandGenerateUniformDouble(generator: u64, to: u64, count: usize) -> u32 {
    fill(generator, to, count, |seed, at| unit(draw(seed, at)))
}

/// The Box–Muller transform: a pair of positions gives a pair of normal numbers.
fn normal(seed: u64, position: u64) -> f64 {
    let even = position & !1;
    let radius = (-2.0 * unit(draw(seed, even)).ln()).sqrt();
    let angle = std::f64::consts::TAU * unit(draw(seed, even + 1));
    radius
        * if position == even {
            angle.cos()
        } else {
            angle.sin()
        }
}

/// Normal numbers. As in cuRAND, the count must be even.
#[unsafe(no_mangle)]
pub extern "C" fn curandGenerateNormal(
    generator: u64,
    to: u64,
    count: usize,
    mean: f32,
    deviation: f32,
) -> u32 {
    if !count.is_multiple_of(2) {
        return LENGTH_NOT_MULTIPLE;
    }
    fill(generator, to, count, |seed, at| {
        mean + deviation * normal(seed, at) as f32
    })
}

/// Normal numbers. As in cuRAND, the count must be even.
#[unsafe(no_mangle)]
pub extern "C" fn curandGenerateNormalDouble(
    generator: u64,
    to: u64,
    count: usize,
    mean: f64,
    deviation: f64,
) -> u32 {
    if !count.is_multiple_of(2) {
        return LENGTH_NOT_MULTIPLE;
    }
    fill(generator, to, count, |seed, at| {
        mean + deviation * normal(seed, at)
    })
}

/// 32 random bits each.
#[unsafe(no_mangle)]
pub extern "C" fn curandGenerate(generator: u64, to: u64, count: usize) -> u32 {
    fill(generator, to, count, |seed, at| {
        (draw(seed, at) >> 32) as u32
    })
}
