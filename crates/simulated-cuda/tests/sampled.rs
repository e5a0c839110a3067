//! Large launches that are executed in part: wrong indices are found, right ones pass, and little memory of the host is used.

mod support;

use std::ffi::CStr;

use simulated_cuda::cublas::{entry::*, handle::*};
use simulated_cuda::driver::allocation::*;
use simulated_cuda::driver::context_stack::*;
use simulated_cuda::driver::copying::*;
use simulated_cuda::driver::memset::*;
use support::counting::{allocate, open};
use support::kernels::{kernel, launch};
use support::process::{Ended, run};
use support::{download, upload};

/// Kernels that write 7 to each byte of a buffer of so many: with an index of 64 bits, of 32 bits with a sign, and of 32 bits without. The last one
/// writes by a pointer that it finds in memory.
const FILL: &CStr = c"
.version 9.0
.target sm_90
.address_size 64
.visible .entry wide(.param .u64 to, .param .u64 other, .param .u64 count)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [count];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    cvt.u64.u32 %rd3, %r3;
    mul.wide.u32 %rd4, %r1, %r2;
    add.s64 %rd5, %rd4, %rd3;
    setp.ge.u64 %p1, %rd5, %rd2;
    @%p1 ret;
    add.s64 %rd6, %rd1, %rd5;
    mov.u32 %r4, 7;
    st.global.u8 [%rd6], %r4;
    ret;
}
.visible .entry narrow(.param .u64 to, .param .u64 other, .param .u64 count)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [count];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    cvt.s64.s32 %rd5, %r4;
    setp.ge.s64 %p1, %rd5, %rd2;
    @%p1 ret;
    add.s64 %rd6, %rd1, %rd5;
    mov.u32 %r5, 7;
    st.global.u8 [%rd6], %r5;
    ret;
}
.visible .entry unsigned(.param .u64 to, .param .u64 other, .param .u64 count)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [count];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    cvt.u64.u32 %rd5, %r4;
    setp.ge.u64 %p1, %rd5, %rd2;
    @%p1 ret;
    add.s64 %rd6, %rd1, %rd5;
    mov.u32 %r5, 7;
    st.global.u8 [%rd6], %r5;
    ret;
}
.visible .entry listed(.param .u64 list, .param .u64 other, .param .u64 count)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [list];
    ld.global.u64 %rd2, [%rd1];
    mov.u32 %r1, 7;
    st.global.u8 [%rd2], %r1;
    ret;
}
";

const GIB: u64 = 1 << 30;
const THREADS: u64 = 1024;

/// Memory of this process that exists, in MiB.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
    let pages = text
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("a number") * 4 / 1024
}

fn fill(name: &CStr, to: u64, other: u64, count: u64) -> u32 {
    let blocks = count.div_ceil(THREADS) as u32;
    launch(
        kernel(FILL, name),
        blocks,
        THREADS as u32,
        &[to, other, count],
    )
}

/// Runs a program on a device larger than the host.
fn sampled(program: &str, variables: &[(&str, &str)]) -> Ended {
    let all = [
        &[
            ("SIMULATED_CUDA_MODE", "sampled"),
            ("SIMULATED_CUDA_MEMORY", "103079215104"),
        ],
        variables,
    ];
    run(program, &all.concat())
}

#[test]
#[ignore = "a program of the test below"]
fn fills() {
    open();
    let number = |name| {
        std::env::var(name)
            .expect("it is set")
            .parse::<u64>()
            .expect("a number")
    };
    let name = std::ffi::CString::new(std::env::var("KERNEL").expect("it is set")).expect("a name");
    let (count, status) = (number("COUNT"), number("STATUS") as u32);
    // Side by side: a wrong index of one leads into the other.
    let other = allocate(count as usize);
    let to = allocate(count as usize);
    assert_eq!(fill(&name, to, other, count), 0, "the fault comes later");
    assert_eq!(cuCtxSynchronize(), status);
    if status == 0 {
        let ends = [to, to + count - 1].map(|address| download::<u8>(address, 1)[0]);
        assert_eq!(u64::from(ends[1]), number("LAST"));
        assert_eq!(ends[0], 7);
        // One of all blocks but 18.
        assert!(resident() < 500, "{} MiB", resident());
    }
}

/// 2^31 and 2^32 elements, and some more. An index of 32 bits without a sign stays within the buffer: it shows by the last element alone.
#[test]
fn indices_of_32_bits_are_found_and_those_of_64_bits_pass() {
    let cases = [
        ("wide", (1u64 << 31) + 77, 0, 7),
        ("wide", (1 << 32) + 77, 0, 7),
        ("narrow", (1 << 31) - 77, 0, 7),
        ("narrow", (1 << 31) + 77, 700, 0),
        ("narrow", (1 << 32) + 77, 700, 0),
        ("unsigned", (1 << 31) + 77, 0, 7),
        ("unsigned", (1 << 32) + 77, 0, 0),
    ];
    for (kernel, count, status, last) in cases {
        let numbers = [count, status, last].map(|number: u64| number.to_string());
        let variables = [
            ("KERNEL", kernel),
            ("COUNT", &numbers[0]),
            ("STATUS", &numbers[1]),
            ("LAST", &numbers[2]),
        ];
        let Ended {
            status: ended,
            report,
            stderr,
        } = sampled("fills", &variables);
        assert!(ended.success(), "{kernel}, {count}: {stderr}");
        let text = format!("of the buffer of argument 0, which has {count} bytes");
        assert_eq!(
            stderr.contains(&text),
            status == 700,
            "{kernel}, {count}: {stderr}"
        );
        if status == 700 {
            assert!(
                stderr.contains("kernel narrow: illegal address 0x"),
                "{stderr}"
            );
            assert!(stderr.contains(" is byte -"), "{stderr}");
            assert!(
                report.contains("\"problem\":\"kernel\",\"what\":\"kernel narrow: "),
                "{report}"
            );
        }
        assert!(
            report.contains("\"computes\":true,\"samples\":true"),
            "{report}"
        );
    }
}

#[test]
#[ignore = "a program of the test below"]
fn executes_small_launches_wholly() {
    open();
    let count = 4096 * THREADS;
    let to = allocate(count as usize);
    assert_eq!(download::<u8>(to, 2), [0, 0], "new memory reads as zeros");
    assert_eq!(fill(c"wide", to, 0, count), 0);
    assert!(
        download::<u8>(to, count as usize)
            .iter()
            .all(|byte| *byte == 7)
    );
    // One block more: the blocks in between are left out.
    assert_eq!(cuMemFreeAsync(to, 0), 0);
    let to = allocate((count + THREADS) as usize);
    assert_eq!(fill(c"wide", to, 0, count + THREADS), 0);
    let bytes = download::<u8>(to, (count + THREADS) as usize);
    let written = bytes.iter().filter(|byte| **byte == 7).count() as u64;
    assert_eq!(written, 18 * THREADS);
    // Pointers in memory lead to their buffers.
    let list = upload(&[to + 3 * THREADS]);
    assert_eq!(fill(c"listed", list, 0, 1), 0);
    assert_eq!(download::<u8>(to + 3 * THREADS, 1), [7]);
    let list = upload(&[to - 8]);
    assert_eq!(fill(c"listed", list, 0, 1), 0);
    assert_eq!(cuCtxSynchronize(), 700);
}

#[test]
fn small_launches_are_executed_wholly_and_blocks_of_large_ones() {
    let Ended { status, stderr, .. } = sampled("executes_small_launches_wholly", &[]);
    assert!(status.success(), "{stderr}");
}

#[test]
#[ignore = "a program of the test below"]
fn sets_and_copies() {
    open();
    let bytes = 16 * GIB as usize;
    let (one, two) = (allocate(bytes), allocate(bytes));
    let last = one + bytes as u64 - 4;
    assert_eq!(cuMemsetD8_v2(one, 0, bytes), 0);
    assert_eq!(cuMemsetD32Async(last, 5, 1, 0), 0);
    assert_eq!(cuMemcpyDtoDAsync_v2(two, one, bytes, 0), 0);
    assert_eq!(download::<u32>(two + bytes as u64 - 4, 1), [5]);
    assert_eq!(cuMemsetD8_v2(one, 0, bytes), 0);
    assert_eq!(download::<u32>(last, 1), [0]);
    assert_eq!(cuMemsetD32Async(one, 9, bytes / 4, 0), 0);
    assert_eq!([download::<u32>(one, 1), download(last, 1)], [[9], [9]]);
    assert!(resident() < 500, "{} MiB", resident());
    assert_eq!([one, two].map(|address| cuMemFreeAsync(address, 0)), [0; 2]);
    let again = allocate(bytes);
    assert_eq!(download::<u32>(again, 1), [0], "no older contents");
}

#[test]
fn memsets_and_copies_of_large_buffers_take_little_memory() {
    let Ended { status, stderr, .. } = sampled("sets_and_copies", &[]);
    assert!(status.success(), "{stderr}");
}

#[test]
#[ignore = "a program of the test below"]
fn multiplies() {
    open();
    let handle = support::out(|place| unsafe { cublasCreate_v2(place) });
    let (alpha, beta) = (1f32, 0f32);
    let [alpha, beta] = [&alpha, &beta].map(|number| &raw const *number as u64);
    // 2^28 operations, and two more for each of 512 · 512 sums.
    for (depth, expected) in [(512i32, 512f32), (513, 0.)] {
        let [a, b, c] =
            [512 * depth, 512 * depth, 512 * 512].map(|size| allocate(4 * size as usize));
        for (address, size) in [(a, 512 * depth), (b, 512 * depth)] {
            assert_eq!(
                cuMemsetD32Async(address, 1f32.to_bits(), size as usize, 0),
                0
            );
        }
        let status = unsafe {
            cublasSgemm_v2(
                handle, 0, 0, 512, 512, depth, alpha, a, 512, b, depth, beta, c, 512,
            )
        };
        assert_eq!(status, 0);
        let results = download::<f32>(c, 512 * 512);
        assert!(results.iter().all(|result| *result == expected), "{depth}");
    }
}

#[test]
fn large_products_are_left_out() {
    let Ended { status, stderr, .. } = sampled("multiplies", &[]);
    assert!(status.success(), "{stderr}");
}
