//! Tests that measure host memory. The process has one allocator, one set of counts and one limit, so each test holds `alone()`.

mod checkpoint;
#[path = "../promises/cleanup_before_retry.rs"]
mod cleanup_before_retry;
mod estimate;
mod evaluation;
mod frozen;
#[path = "../promises/honest_numbers.rs"]
mod honest_numbers;
#[path = "../promises/hostile/mod.rs"]
mod hostile;
mod kept;
mod language;
#[cfg(feature = "layers")]
mod layers;
mod memory;
#[path = "../promises/no_ratchet.rs"]
mod no_ratchet;
mod regions;
mod remedies;
mod report;
#[cfg(feature = "image")]
mod small_files;
#[path = "../support/mod.rs"]
mod support;
mod two_trainers;

use candle_headroom::TrackingAllocator;

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();
