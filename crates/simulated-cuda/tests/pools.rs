//! Stream-ordered pools: accounting, limits, and when a freed block may be used again.

mod support;

use simulated_cuda::control::*;
use simulated_cuda::driver::allocation::*;
use simulated_cuda::driver::event::*;
use simulated_cuda::driver::pool::*;
use simulated_cuda::driver::stream::*;
use support::*;

#[test]
fn accounts_for_reserved_and_used_bytes() {
    let _bench = Bench::new();
    let (pool, stream) = (pool(0), stream());
    let a = allocate(pool, 1000, stream);
    let b = allocate(pool, MIB, stream);
    assert_eq!(attribute(pool, 5), 2 * MIB, "one segment serves both");
    assert_eq!(attribute(pool, 7), MIB + 1024);
    free(a, stream);
    free(b, stream);
    assert_eq!(
        allocate(pool, 2 * MIB, stream),
        a,
        "the freed blocks are one again"
    );
    assert_eq!((attribute(pool, 7), attribute(pool, 8)), (2 * MIB, 2 * MIB));
    free(a, stream);
    assert_eq!(attribute(pool, 6), 2 * MIB);
    assert_eq!(unsafe { cuMemPoolSetAttribute(pool, 8, &0) }, 0);
    assert_eq!(attribute(pool, 8), 0);
    assert_eq!(unsafe { cuMemPoolSetAttribute(pool, 8, &5) }, INVALID_VALUE);
    assert_eq!(unsafe { cuMemPoolSetAttribute(pool, 5, &0) }, INVALID_VALUE);
    assert_eq!(cuMemPoolDestroy(pool), 0);
    assert_eq!(cuStreamDestroy_v2(stream), 0);
}

#[test]
fn a_synchronisation_returns_what_lies_over_the_threshold() {
    let _bench = Bench::new();
    let (pool, stream) = (pool(0), stream());
    assert_eq!(unsafe { cuMemPoolSetAttribute(pool, 4, &(2 * MIB)) }, 0);
    let blocks = [(); 3].map(|()| allocate(pool, 2 * MIB, stream));
    blocks.iter().for_each(|&block| free(block, stream));
    assert_eq!(cuMemPoolTrimTo(pool, 0), 0);
    assert_eq!(
        attribute(pool, 5),
        6 * MIB,
        "trimming does not wait for the stream"
    );
    assert_eq!(cuStreamSynchronize(stream), 0);
    assert_eq!(attribute(pool, 5), 2 * MIB);
    assert_eq!(cuMemPoolTrimTo(pool, 0), 0);
    assert_eq!(attribute(pool, 5), 0);
    assert_eq!(cuMemPoolDestroy(pool), 0);
    assert_eq!(cuStreamDestroy_v2(stream), 0);
}

#[test]
fn limits_count_whole_segments_unless_the_driver_ignores_them() {
    let _bench = Bench::new();
    let (pool, stream) = (pool(3 * MIB), stream());
    let block = allocate(pool, 3 * MIB, stream);
    assert_eq!(
        try_allocate(pool, MIB, stream).map(|_| ()),
        Ok(()),
        "the limit is rounded up to 4 MiB"
    );
    assert_eq!(try_allocate(pool, MIB, stream), Err(OUT_OF_MEMORY));
    free(block, stream);
    assert_eq!(allocate(pool, 3 * MIB, stream), block);
    simulated_cuda_set_honours_max_size(0, false);
    assert!(try_allocate(pool, MIB, stream).is_ok());
    simulated_cuda_set_honours_max_size(0, true);

    simulated_cuda_set_driver_version(12010);
    let mut unused = 0;
    assert_eq!(
        unsafe { cuMemPoolCreate(&mut unused, &Properties::of_device(0, MIB)) },
        INVALID_VALUE
    );
    simulated_cuda_set_driver_version(13000);
    assert_eq!(cuMemPoolDestroy(pool), 0);
    assert_eq!(cuStreamDestroy_v2(stream), 0);
}

#[test]
fn a_destroyed_pool_lives_as_long_as_its_allocations() {
    let _bench = Bench::new();
    let (pool, stream) = (pool(0), stream());
    assert_eq!(cuDeviceSetMemPool(0, pool), 0);
    let block = out(|place| unsafe { cuMemAllocAsync(place, MIB as usize, stream) });
    let before = counters();
    assert_eq!(
        (before.live_pools, before.reserved_bytes),
        (1, counters().reserved_bytes)
    );
    assert_eq!(cuMemPoolDestroy(pool), 0);
    assert_eq!(
        out(|place| unsafe { cuDeviceGetMemPool(place, 0) }),
        default_pool()
    );
    assert_eq!(counters().live_pools, 0);
    assert_eq!(counters().reserved_bytes, before.reserved_bytes);
    assert_eq!(try_allocate(pool, 1, stream), Err(INVALID_VALUE));
    free(block, stream);
    assert_eq!(counters().reserved_bytes, before.reserved_bytes - 2 * MIB);
    assert_eq!(cuMemPoolDestroy(default_pool()), INVALID_VALUE);
    assert_eq!(cuStreamDestroy_v2(stream), 0);
}

#[test]
fn other_streams_reuse_only_what_they_know_to_be_free() {
    let _bench = Bench::new();
    let (pool, one, other) = (pool(0), stream(), stream());
    assert_eq!(unsafe { cuMemPoolSetAttribute(pool, 4, &u64::MAX) }, 0);
    let block = allocate(pool, 2 * MIB, one);
    free(block, one);
    let elsewhere = allocate(pool, 2 * MIB, other);
    assert_ne!(elsewhere, block);
    assert_eq!(
        allocate(pool, 2 * MIB, one),
        block,
        "the stream that freed it may reuse it"
    );
    free(block, one);

    let event = out(|place| unsafe { cuEventCreate(place, 2) });
    assert_eq!(cuEventRecord(event, one), 0);
    assert_eq!(cuStreamWaitEvent(other, event, 0), 0);
    assert_eq!(
        allocate(pool, 2 * MIB, other),
        block,
        "the event told the other stream"
    );
    free(block, other);
    free(elsewhere, other);
    assert_eq!(cuStreamSynchronize(other), 0);
    assert!(
        [block, elsewhere].contains(&allocate(pool, 2 * MIB, one)),
        "the host waited"
    );
    assert_eq!(cuEventDestroy_v2(event), 0);
    assert_eq!(cuMemPoolDestroy(pool), 0);
    assert_eq!(
        [one, other].map(|stream| cuStreamDestroy_v2(stream)),
        [0, 0]
    );
}
