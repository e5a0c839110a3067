use candle_core::DType;
use half::{bf16, f16};

use super::{problem, tensor, x};

#[test]
fn labels_are_checked_at_the_ends_of_their_range() {
    let labels = |range: std::ops::Range<i64>| x().range(range);
    assert_eq!(problem(&tensor(&[0u32, 9, 4]), &[labels(0..10)]), "");
    assert_eq!(
        problem(&tensor(&[1u32, 2, 10]), &[labels(0..10)]),
        "sample 2, tensor `x` holds 10 at [2], expected values in 0..10"
    );
    assert_eq!(
        problem(&tensor(&[0u32, 10, 11]), &[labels(0..10)]),
        "sample 1, tensor `x` holds 10 at [1], expected values in 0..10"
    );
    assert_eq!(
        problem(&tensor(&[[3i64, 4], [5, -100]]), &[labels(0..10)]),
        "sample 1, tensor `x` holds -100 at [1, 1], expected values in 0..10"
    );
    assert_eq!(
        problem(
            &tensor(&[[3i64, 4], [5, -100]]),
            &[labels(0..10).ignore(-100)]
        ),
        ""
    );
    // candle's own mark for a row that does not count.
    let none = tensor(&[1u32, u32::MAX]);
    assert!(
        problem(&none, &[labels(0..10)])
            .contains("holds 4294967295 at [1], expected values in 0..10")
    );
    assert_eq!(
        problem(&none, &[labels(0..10).ignore(i64::from(u32::MAX))]),
        ""
    );

    assert_eq!(
        problem(&tensor(&[i64::MIN, i64::MAX]), &[x().range(..)]),
        ""
    );
    assert_eq!(problem(&tensor(&[i64::MAX]), &[x().range(..=i64::MAX)]), "");
    assert!(
        problem(&tensor(&[i64::MAX]), &[x().range(..i64::MAX)])
            .ends_with("in ..9223372036854775807")
    );
    assert!(
        problem(&tensor(&[0i64]), &[x().range(1..)])
            .ends_with("holds 0 at [0], expected values in 1..")
    );
    assert!(
        problem(&tensor(&[0u8]), &[x().range(5..5)])
            .ends_with("holds 0 at [0], expected values in 5..5")
    );
    assert!(problem(&tensor(&[200u8]), &[x().range(0..=199)]).contains("0..=199"));
    // Only what was declared counts, and the places after the last check are free.
    assert_eq!(
        problem(&(tensor(&[200u8]), tensor(&[f32::NAN])), &[x()]),
        ""
    );
}

#[test]
fn floats_are_checked_in_every_type() {
    let finite = || x().finite();
    let at_4 = "sample 2, tensor `x` holds NaN at [2, 0], expected finite values";
    let values = [0f64, 1., 2., 3., f64::NAN, f64::INFINITY];
    for dtype in [
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::F8E4M3,
    ] {
        let values = tensor(&values)
            .reshape((3, 2))
            .unwrap()
            .to_dtype(dtype)
            .unwrap();
        assert_eq!(problem(&values, &[finite()]), at_4, "{dtype:?}");
        assert_eq!(problem(&values, &[x()]), "");
        assert_eq!(
            problem(&values.narrow(0, 0, 2).unwrap(), &[finite().range(0..=3)]),
            "",
            "{dtype:?}"
        );
        let problem = problem(&values, &[x().range(0..=3)]);
        assert!(
            problem
                .starts_with("sample 2, tensor `x` holds NaN at [2, 0], expected values in 0..=3")
        );
    }
    let infinite = tensor(&[[bf16::ONE, bf16::NEG_INFINITY]]);
    assert_eq!(
        problem(&infinite, &[finite()]),
        "sample 0, tensor `x` holds -inf at [0, 1], expected finite values"
    );
    assert_eq!(
        problem(&tensor(f16::NAN), &[finite()]),
        "tensor `x` holds NaN, expected finite values"
    );

    let pixels = tensor(&[[0f32, 0.5], [1., 128.]]);
    assert_eq!(
        problem(&pixels, &[x().range(0..=1)]),
        "sample 1, tensor `x` holds 128 at [1, 1], expected values in 0..=1"
    );
    assert_eq!(problem(&(pixels / 255.).unwrap(), &[x().range(0..=1)]), "");
    // An open end is open: 1 is not in it.
    assert_eq!(
        problem(&tensor(&[1f32]), &[x().range(0..1)]),
        "sample 0, tensor `x` holds 1 at [0], expected values in 0..1"
    );
}

/// The sample and the place are those of the tensor as it is seen, not as it is stored.
#[test]
fn views_are_read_as_they_are() {
    let stored = tensor(&[[0f32, 1., 2.], [3., f32::NAN, 5.]]);
    assert_eq!(
        problem(&stored.t().unwrap(), &[x().finite()]),
        "sample 1, tensor `x` holds NaN at [1, 1], expected finite values"
    );
    let last = stored.narrow(1, 2, 1).unwrap();
    assert_eq!(problem(&last, &[x().finite()]), "");
    let below = stored.narrow(0, 1, 1).unwrap();
    assert!(problem(&below, &[x().finite()]).contains("sample 0, tensor `x` holds NaN at [0, 1]"));
    let broadcast = tensor(&[1u32, 2]).broadcast_as((3, 2)).unwrap();
    assert!(
        problem(&broadcast, &[x().range(0..2)]).contains("sample 0, tensor `x` holds 2 at [0, 1]")
    );
    // A block boundary of the search, and the last element.
    for place in [1023, 1024, 4999] {
        let mut values = vec![0u32; 5000];
        values[place] = 7;
        let found = problem(&tensor(values), &[x().range(0..7)]);
        assert!(found.starts_with(&format!("sample {place}, tensor `x` holds 7 at [{place}]")));
    }
}
