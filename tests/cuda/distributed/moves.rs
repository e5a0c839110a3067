//! What the collectives compute, and in which order with other work.

use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::distributed::Operation;
use candle_headroom::testing::watch;

use super::launch::{Counts, Rank, Settings, counts, together};

/// Whole numbers, so that sums are exact in any order: `index + 1000 · rank`.
fn numbers(rank: &Rank, count: usize, dtype: DType) -> Result<Tensor> {
    let values = (0..count).map(|index| (index + 1000 * rank.number()) as f64);
    let values = Tensor::from_iter(values, &Device::Cpu)?;
    values.to_dtype(dtype)?.to_device(&rank.device)
}

fn read(tensor: &Tensor) -> Vec<f64> {
    let values = tensor
        .to_device(&Device::Cpu)
        .and_then(|it| it.to_dtype(DType::F64));
    let values = values.and_then(|it| it.flatten_all()?.to_vec1());
    values.expect("values")
}

fn sums(rank: &Rank) {
    let size = rank.group.size();
    let all = (size * (size - 1) / 2 * 1000) as f64;
    let nccl = rank.nccl().unwrap();
    assert_eq!(
        (nccl.name().as_str(), nccl.bucket()),
        ("NCCL 2.27.3", usize::MAX)
    );
    let watch = watch(&rank.group, "a test");
    // Lengths of one element for each rank, and one that takes many files' blocks.
    for (dtype, length) in [
        (DType::F32, size),
        (DType::F64, 40 * size),
        (DType::F32, 30_000 * size),
    ] {
        // A part of a larger tensor, which starts in the middle of it.
        let whole = numbers(rank, length + 24, dtype).unwrap();
        let part = whole.narrow(0, 7, length).unwrap();
        let expected = |index: usize| (size * (index + 7)) as f64 + all;
        // With a kernel in front that NCCL has to wait for, and one behind that has to wait for NCCL.
        let doubled = (&part * 2.).unwrap();
        nccl.exchange(&part, Operation::ReduceScatter, &watch)
            .unwrap();
        nccl.exchange(&doubled, Operation::ReduceScatter, &watch)
            .unwrap();
        let piece = length / size;
        let own = rank.number() * piece..(rank.number() + 1) * piece;
        let after = (&doubled.narrow(0, own.start, piece).unwrap() * 0.5).unwrap();
        nccl.exchange(&part, Operation::AllGather, &watch).unwrap();
        nccl.finish(&watch).unwrap();
        let expected: Vec<_> = (0..length).map(expected).collect();
        assert_eq!(read(&part), expected, "{dtype:?}");
        assert_eq!(read(&after), expected[own], "{dtype:?}");
        // Beside the part nothing has changed.
        let (before, behind) = (whole.narrow(0, 0, 7), whole.narrow(0, 7 + length, 17));
        let fresh = read(&numbers(rank, length + 24, dtype).unwrap());
        assert_eq!(read(&before.unwrap()), fresh[..7]);
        assert_eq!(read(&behind.unwrap()), fresh[7 + length..]);
    }
}

fn copies(rank: &Rank) {
    let size = rank.group.size();
    let nccl = rank.nccl().unwrap();
    let watch = watch(&rank.group, "a test");
    for dtype in [
        DType::BF16,
        DType::F16,
        DType::U8,
        DType::U32,
        DType::I64,
        DType::F64,
    ] {
        // Small numbers, which all types have.
        let value = rank.number() as f64 + 3.;
        let full = |shape: &[usize]| {
            let tensor = Tensor::full(value, shape, &Device::Cpu).and_then(|it| it.to_dtype(dtype));
            tensor.and_then(|it| it.to_device(&rank.device)).unwrap()
        };
        let pieces = full(&[3 * size]);
        nccl.exchange(&pieces, Operation::AllGather, &watch)
            .unwrap();
        for from in [size - 1, 0] {
            // Rows in the middle of a matrix.
            let matrix = full(&[5, 3]);
            let rows = matrix.narrow(0, 1, 2).unwrap();
            nccl.exchange(&rows, Operation::Broadcast { from }, &watch)
                .unwrap();
            let theirs = from as f64 + 3.;
            let expected = [vec![value; 3], vec![theirs; 6], vec![value; 6]].concat();
            assert_eq!(read(&matrix), expected, "{dtype:?}");
        }
        nccl.finish(&watch).unwrap();
        let expected = (0..3 * size).map(|index| (index / 3) as f64 + 3.);
        assert_eq!(read(&pieces), expected.collect::<Vec<_>>(), "{dtype:?}");
    }
    let nothing = Tensor::zeros(0, DType::F32, &rank.device).unwrap();
    nccl.exchange(&nothing, Operation::ReduceScatter, &watch)
        .unwrap();
    nccl.exchange(&nothing, Operation::AllGather, &watch)
        .unwrap();
    nccl.exchange(&nothing, Operation::Broadcast { from: 0 }, &watch)
        .unwrap();
    nccl.finish(&watch).unwrap();
}

/// All of it, and nothing is left behind.
fn all(rank: Rank) {
    let simulator = rank.simulator();
    // Events, and the device's memory without the pool.
    let state = || {
        let counters = simulator.counters();
        (
            counters.live_events,
            counters.device_used - counters.reserved_bytes,
        )
    };
    let before = state();
    sums(&rank);
    copies(&rank);
    let (_, with) = state();
    assert!(with > before.1, "NCCL takes memory");
    let expected = |live, destroys| Counts {
        live,
        aborts: 0,
        destroys,
        misuses: 0,
    };
    assert_eq!(counts(), expected(1, 0));
    drop(rank.group);
    assert_eq!(counts(), expected(0, 1));
    assert_eq!(state(), before, "nothing is left behind");
}

fn plain(_: usize) -> Settings {
    Vec::new()
}

#[test]
fn two_ranks() {
    together(2, plain, all);
}

#[test]
fn four_ranks() {
    together(4, plain, all);
}

/// One rank's device executes work as late as it may.
#[test]
fn a_late_rank() {
    let late = |rank: usize| match rank {
        1 => vec![("SIMULATED_CUDA_LATE", "1".to_owned())],
        _ => Vec::new(),
    };
    together(2, late, all);
}
