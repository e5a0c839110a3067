//! A program without the tracking allocator: nothing is counted, and every count is `None`.

use candle_core::Device;
use candle_headroom::batch::find_batch_size;
use candle_headroom::error::MemoryReading;
use candle_headroom::memory::Limit;
use candle_headroom::testing::out_of_memory;
use candle_headroom::{ByteSize, DeviceMemory};

#[test]
fn a_limit_is_refused_with_the_two_lines_to_add() {
    for limit in [Limit::Bytes(ByteSize::gib(1)), Limit::Auto] {
        let error = DeviceMemory::host().limit(limit).open().unwrap_err();
        let text = error.to_string();
        assert!(error.is_memory());
        assert!(text.starts_with("only the tracking allocator can limit host memory"));
        assert!(text.contains("#[global_allocator]\n"), "{text}");
        assert!(
            text.contains("static ALLOCATOR: candle_headroom::TrackingAllocator"),
            "{text}"
        );
    }
}

#[test]
fn what_is_not_counted_is_none() {
    let memory = DeviceMemory::host().open().unwrap();
    let stats = memory.stats();
    assert_eq!((stats.in_use, stats.peak, stats.limit), (None, None, None));
    assert_eq!(stats.enforcement, None);
    assert_eq!(stats.to_string(), "in use n/a, peak n/a, no limit");
    assert_eq!(memory.in_use(), None);
    assert_eq!(memory.reading(), MemoryReading::default());
    let scope = memory.peak_scope();
    assert_eq!((scope.start(), scope.peak()), (None, None));
    assert!(memory.set_limit(ByteSize::gib(1)).is_err());
    assert_eq!(memory.limit(), None);
}

/// A memory that counts nothing does not change which sizes are tried.
#[test]
fn a_batch_size_is_found_by_trying() {
    let memory = DeviceMemory::host().open().unwrap();
    let tried = |memory: Option<&DeviceMemory>| {
        let mut sizes = Vec::new();
        let found = find_batch_size(&Device::Cpu, memory, 1024, |size| {
            sizes.push(size);
            match size > 100 {
                true => Err(out_of_memory()),
                false => Ok(()),
            }
        });
        sizes.dedup(); // one sample is measured twice
        (found.unwrap(), sizes)
    };
    assert_eq!(tried(Some(&memory)), tried(None));
    assert_eq!(tried(Some(&memory)).0, 100);
}
