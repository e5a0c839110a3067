//! The bytes of a device: capacity, other processes, fragmentation, injected failures, and frees.

mod support;

use simulated_cuda::control::*;
use simulated_cuda::driver::allocation::*;
use simulated_cuda::driver::context_stack::*;
use simulated_cuda::driver::copying::*;
use simulated_cuda::driver::host_memory::*;
use simulated_cuda::driver::memset::*;
use simulated_cuda::driver::pool::*;
use simulated_cuda::driver::stream::*;
use support::*;

fn free_bytes() -> u64 {
    let (mut free, mut total) = (0, 0);
    assert_eq!(unsafe { cuMemGetInfo_v2(&mut free, &mut total) }, 0);
    free as u64
}

#[test]
fn a_neighbour_takes_what_is_free_and_no_more() {
    let _bench = Bench::new();
    let free = free_bytes();
    assert_eq!(simulated_cuda_neighbour_set(0, free + 1), -1);
    assert_eq!(simulated_cuda_neighbour_set(0, free - MIB), 0);
    assert_eq!(free_bytes(), MIB);
    let mut address = 0;
    assert_eq!(
        unsafe { cuMemAlloc_v2(&mut address, 2 * MIB as usize) },
        OUT_OF_MEMORY
    );
    assert_eq!(simulated_cuda_neighbour_set(0, 0), 0);
    assert_eq!(unsafe { cuMemAlloc_v2(&mut address, 2 * MIB as usize) }, 0);
    assert_eq!(free_bytes(), free - 2 * MIB);
    assert_eq!(
        cuMemFreeAsync(address, 0),
        0,
        "either call frees either kind"
    );
    assert_eq!(free_bytes(), free);
}

#[test]
fn in_fragmentation_mode_free_pieces_do_not_serve_a_large_request() {
    let _bench = Bench::new();
    let (pool, stream) = (pool(0), stream());
    assert_eq!(cuCtxSynchronize(), 0);
    assert_eq!(simulated_cuda_set_fragmentation(0, true), 0);
    let blocks: Vec<u64> = (0..12).map(|_| allocate(pool, 20 * MIB, stream)).collect();
    assert_eq!(
        simulated_cuda_set_fragmentation(0, false),
        -1,
        "not while memory is held"
    );
    blocks
        .iter()
        .step_by(2)
        .for_each(|&block| free(block, stream));
    assert_eq!(cuStreamSynchronize(stream), 0);
    assert!(free_bytes() > 100 * MIB);
    assert_eq!(try_allocate(pool, 40 * MIB, stream), Err(OUT_OF_MEMORY));
    assert!(try_allocate(pool, 20 * MIB, stream).is_ok_and(|block| cuMemFree_v2(block) == 0));
    blocks
        .iter()
        .skip(1)
        .step_by(2)
        .for_each(|&block| free(block, stream));
    assert_eq!(cuStreamSynchronize(stream), 0);
    assert_eq!(simulated_cuda_set_fragmentation(0, false), 0);
    assert_eq!(cuMemPoolDestroy(pool), 0);
    assert_eq!(cuStreamDestroy_v2(stream), 0);
}

#[test]
fn the_ordered_calls_fail() {
    let _bench = Bench::new();
    simulated_cuda_fail_allocation(0, 2, 2);
    let outcomes = [(); 4].map(|()| try_allocate(default_pool(), 100, 0));
    assert_eq!(
        outcomes.map(|outcome| outcome.is_ok()),
        [true, false, false, true]
    );
    outcomes
        .into_iter()
        .flatten()
        .for_each(|address| free(address, 0));
    let counted = counters();
    assert_eq!(
        (
            counted.allocations,
            counted.frees,
            counted.failed_allocations
        ),
        (4, 2, 2)
    );
    assert_eq!((counted.live_bytes, counted.peak_live_bytes), (0, 200));

    simulated_cuda_fail_host_allocation(0, 1, 1);
    let mut pinned = 0;
    assert_eq!(
        unsafe { cuMemHostAlloc(&mut pinned, 100, 0) },
        OUT_OF_MEMORY
    );
    assert_eq!(unsafe { cuMemHostAlloc(&mut pinned, 100, 0) }, 0);
    assert_eq!(counters().live_host_bytes, 100);
    assert_eq!(cuMemFreeHost(pinned), 0);
}

#[test]
fn copies_stay_within_allocations_and_fresh_memory_is_poisoned() {
    let _bench = Bench::new();
    let block = allocate(default_pool(), 8, 0);
    assert!(download::<f32>(block, 2).iter().all(|value| value.is_nan()));
    assert_eq!(cuMemsetD32_v2(block, 7, 2), 0);
    assert_eq!(download::<u32>(block, 2), [7, 7]);
    assert_eq!(cuMemsetD32_v2(block, 7, 3), INVALID_VALUE);
    let mut host = [0u8; 16];
    assert_eq!(
        unsafe { cuMemcpyDtoH_v2(host.as_mut_ptr() as u64, block, 9) },
        INVALID_VALUE
    );
    free(block, 0);
    assert_eq!(
        unsafe { cuMemcpyHtoD_v2(block, host.as_ptr() as u64, 1) },
        INVALID_VALUE
    );
    assert_eq!(cuMemFreeAsync(block, 0), INVALID_VALUE, "twice");
}

#[test]
fn a_thread_without_a_context_frees_on_a_created_stream_alone() {
    let bench = Bench::new();
    let (stream, context) = (stream(), bench.context);
    let block = allocate(default_pool(), 100, stream);
    std::thread::spawn(move || assert_eq!(cuMemFreeAsync(block, stream), 0))
        .join()
        .unwrap();
    assert_eq!(counters().live_allocations, 0);

    let block = allocate(default_pool(), 100, stream);
    std::thread::spawn(move || {
        assert_eq!(cuMemFreeAsync(block, 0), 201);
        assert_eq!(counters().refused_frees, 1);
        assert_eq!(simulated_cuda_set_frees_need_context(0, true), 0);
        assert_eq!(cuMemFreeAsync(block, stream), 201);
        assert_eq!(simulated_cuda_set_frees_need_context(0, false), 0);
        assert_eq!(counters().live_allocations, 1);
        assert_eq!(
            (counters().refused_frees, counters().invalid_context_calls),
            (2, 2)
        );
        assert_eq!(cuCtxSetCurrent(context), 0);
        assert_eq!(cuMemFreeAsync(block, stream), 0);
    })
    .join()
    .unwrap();
    assert_eq!(counters().live_allocations, 0);
    assert_eq!(cuStreamDestroy_v2(stream), 0);
}

/// Late work sees what pinned memory holds when something waits for it, and finds memory gone that was freed too early.
#[test]
fn late_copies_read_pinned_memory_late() {
    let _bench = Bench::new();
    let (pool, stream) = (pool(0), stream());
    let block = allocate(pool, 4, stream);
    let pinned: u64 = out(|place| unsafe { cuMemHostAlloc(place, 4, 0) });
    // SAFETY: memory of the simulator, which is this process's.
    let write = |value: u32| unsafe { (pinned as *mut u32).write(value) };
    let read = || {
        let mut value = 0_u32;
        let place = &raw mut value as u64;
        assert_eq!(unsafe { cuMemcpyDtoHAsync_v2(place, block, 4, stream) }, 0);
        value
    };
    let up = |from: u64| unsafe { cuMemcpyHtoDAsync_v2(block, from, 4, stream) };
    for (late, seen) in [(false, 1), (true, 2)] {
        assert_eq!(simulated_cuda_set_late(0, late), 0);
        write(1);
        assert_eq!(up(pinned), 0);
        write(2);
        assert_eq!(read(), seen, "a copy to pageable memory waits");
        // A copy from pageable memory has read it.
        let mut pageable = 3_u32;
        assert_eq!(up(&raw mut pageable as u64), 0);
        pageable = 4;
        assert_eq!((read(), pageable), (3, 4));
    }
    assert_eq!(cuMemsetD8Async(block, 5, 4, stream), 0);
    assert_eq!(up(pinned), 0);
    assert_eq!(cuStreamSynchronize(stream), 0);
    assert_eq!(read(), 2);

    assert_eq!(up(pinned), 0);
    assert_eq!(cuMemFreeHost(pinned), 0);
    assert_eq!(cuStreamSynchronize(stream), 700);
    simulated_cuda_clear_fault(0);
    assert_eq!(simulated_cuda_set_late(0, false), 0);
    free(block, stream);
}
