//! The same of memory, copies and libraries, which are counted with their bytes.

mod support;

use simulated_cuda::counts::*;
use simulated_cuda::cublas::{entry::*, handle::*, vector_entry::*};
use simulated_cuda::curand::*;
use simulated_cuda::driver::allocation::*;
use simulated_cuda::driver::copying::*;
use simulated_cuda::driver::host_memory::*;
use simulated_cuda::driver::memset::*;
use simulated_cuda::driver::stream::*;
use support::convolution::{Call, PLAIN};
use support::counting::*;
use support::{OUT_OF_MEMORY, out};

#[test]
#[ignore = "a program of the test below"]
fn memory() {
    open();
    let host = out(|place| unsafe { cuMemAllocHost_v2(place, 4096) });
    let mut pageable = [1u8; 4096];
    let pageable = pageable.as_mut_ptr() as u64;
    assert_eq!(simulated_cuda_counts_reset(), 0);
    phase(c"allocating", || {
        let (one, two) = (allocate(4096), allocate(100));
        let direct = out(|place| unsafe { cuMemAlloc_v2(place, 1000) });
        let mut none = 0;
        let status = unsafe { cuMemAllocAsync(&mut none, 1 << 50, 0) };
        assert_eq!(status, OUT_OF_MEMORY);
        assert_eq!(cuMemsetD32Async(one, 3, 1024, 0), 0);
        assert_eq!(cuMemsetD8_v2(two, 0, 100), 0);
        let statuses = unsafe {
            [
                cuMemcpyHtoD_v2(one, pageable, 4096),
                cuMemcpyHtoDAsync_v2(one, host, 50, 0),
                cuMemcpyDtoDAsync_v2(two, one, 100, 0),
                // The host waits for these two.
                cuMemcpyDtoH_v2(host, two, 100),
                cuMemcpyDtoHAsync_v2(pageable, one, 200, 0),
                cuMemcpyDtoHAsync_v2(host, one, 300, 0),
                cuMemcpyAsync(host, pageable, 7, 0),
            ]
        };
        assert_eq!(statuses, [0; 7]);
        assert_eq!(cuStreamSynchronize(0), 0);
        let frees = [
            cuMemFreeAsync(one, 0),
            cuMemFree_v2(two),
            cuMemFree_v2(direct),
        ];
        assert_eq!(frees, [0; 3]);
    });
    assert_eq!(cuMemFreeHost(host), 0);
}

#[test]
fn allocations_copies_and_memsets_are_counted_with_their_bytes() {
    let counts = in_every_mode("memory");
    let parts = [
        "\"allocations\":{\"pool\":{\"count\":2,\"bytes\":4196},\"direct\":{\"count\":1,\"bytes\":1000},\
         \"refused\":{\"count\":1,\"bytes\":1125899906842624}}",
        "\"frees\":{\"pool\":{\"count\":2,\"bytes\":4196},\"direct\":{\"count\":1,\"bytes\":1000}}",
        "\"memsets\":{\"count\":2,\"bytes\":4196}",
        "\"copies\":{\"host_to_device\":{\"count\":2,\"bytes\":4146},\"device_to_host\":{\"count\":3,\"bytes\":600},\
         \"device_to_device\":{\"count\":1,\"bytes\":100},\"host_to_host\":{\"count\":1,\"bytes\":7}}",
        "\"synchronizations\":{\"count\":3,\"cuStreamSynchronize\":1,\"cuEventSynchronize\":0,\"cuCtxSynchronize\":0,\
         \"blocking_copies\":2",
        "\"calls\":{\"count\":17,\"context\":0,",
    ];
    has(&counts, "allocating", &parts);
}

#[test]
#[ignore = "a program of the test below"]
fn libraries() {
    open();
    let (a, b, c) = (allocate(4096), allocate(4096), allocate(4096));
    for address in [a, b, c] {
        assert_eq!(cuMemsetD32Async(address, 0, 1024, 0), 0);
    }
    let (alpha, beta) = (1f32, 0f32);
    let [alpha, beta] = [&alpha, &beta].map(|number| &raw const *number as u64);
    let handle = out(|place| unsafe { cublasCreate_v2(place) });
    assert_eq!(cublasSetStream_v2(handle, 0), 0);
    let (m, n, k) = (5, 3, 4);
    let statuses = unsafe {
        [
            cublasSgemm_v2(handle, 0, 0, m, n, k, alpha, a, m, b, k, beta, c, m),
            cublasSgemmStridedBatched(
                handle, 0, 0, m, n, k, alpha, a, m, 20, b, k, 12, beta, c, m, 15, 2,
            ),
            cublasSgemv_v2(handle, 0, m, n, alpha, a, m, b, 1, beta, c, 1),
            cublasSaxpy_v2(handle, 10, alpha, a, 2, b, 1),
        ]
    };
    assert_eq!(statuses, [0; 4]);
    let generator = out(|place| unsafe { curandCreateGenerator(place, 100) });
    assert_eq!(curandGenerateUniform(generator, a, 100), 0);
    assert_eq!(curandGenerateUniform(generator, a, 1), 0);
    let call = Call::new(&PLAIN, 0, 0, 1);
    let space = call.workspace(1).expect("a workspace");
    let space_at = allocate(space.max(1));
    assert_eq!(
        call.forward((1f32, 0f32), [a, b, c], (1, space_at, space)),
        0
    );
}

#[test]
fn products_and_other_work_of_libraries_are_counted_with_flops_and_bytes() {
    let counts = in_every_mode("libraries");
    let case = PLAIN;
    let [height, width] = case.output();
    let outputs = case.images * case.outputs * height * width;
    let taps = case.inputs * case.filter[0] * case.filter[1];
    let elements =
        case.images * case.inputs * case.size[0] * case.size[1] + case.outputs * taps + outputs;
    let convolution = format!(
        "\"cudnnConvolutionForward\":{{\"calls\":1,\"flops\":{},\"bytes\":{}}}",
        2 * outputs * taps,
        4 * elements
    );
    let product = 4 * (20 + 12 + 15);
    let parts = [
        format!("\"cublasSgemm_v2\":{{\"calls\":1,\"flops\":120,\"bytes\":{product}}}"),
        format!(
            "\"cublasSgemmStridedBatched\":{{\"calls\":1,\"flops\":240,\"bytes\":{}}}",
            2 * product
        ),
        "\"cublasSgemv_v2\":{\"calls\":1,\"flops\":30,\"bytes\":92}".to_owned(),
        "\"cublasSaxpy_v2\":{\"calls\":1,\"flops\":20,\"bytes\":80}".to_owned(),
        "\"cublasSetStream_v2\":{\"calls\":1,\"flops\":0,\"bytes\":0}".to_owned(),
        "\"curandGenerateUniform\":{\"calls\":2,\"flops\":0,\"bytes\":404}".to_owned(),
        convolution,
    ];
    has(&counts, "all", &parts.each_ref().map(String::as_str));
}
