use proptest::prelude::*;

use super::*;

const CODES: [Code; 2] = [Code::Signed, Code::Unsigned];

fn store(code: Code, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xaa; bytes_of(values.len())];
    assert_eq!(elements_of(bytes.len()), values.len());
    code.store(values, &mut bytes);
    bytes
}

fn load(code: Code, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![7.; elements_of(bytes.len())];
    code.load(bytes, &mut values);
    values
}

/// The code as the paper builds it: in each decade the middles of equal parts of 0.1 to 1, of which the highest has 64, with a sign,
/// or 128; and 0 and 1.
fn of_the_paper(code: Code) -> Vec<f64> {
    let mut values = vec![0., 1.];
    for decade in 0..7 {
        let parts = if code == Code::Signed { 1 } else { 2 } << decade;
        for part in 0..parts {
            let within = 0.1 + 0.9 * (f64::from(part) + 0.5) / f64::from(parts);
            let value = within * 10f64.powi(decade - 6);
            values.push(value);
            if code == Code::Signed {
                values.push(-value);
            }
        }
    }
    values.sort_by(f64::total_cmp);
    values
}

#[test]
fn the_code_is_the_paper_s() {
    for code in CODES {
        let mut values = code.values().map(f64::from).to_vec();
        values.sort_by(f64::total_cmp);
        let expected = of_the_paper(code);
        assert_eq!((values.len(), expected.len()), (256, 256));
        for (value, expected) in values.iter().zip(expected) {
            // A few roundings of f32.
            assert!((value - expected).abs() <= 3e-7 * expected.abs());
        }
    }
}

/// Every element becomes the nearest number of the code times the largest element.
#[test]
fn coding_takes_the_nearest() {
    for code in CODES {
        let mut numbers: Vec<f32> = (0..400_000).map(|i| i as f32 / 400_000.).collect();
        numbers.extend((0..40_000).map(|i| 10f32.powf(-8. * i as f32 / 40_000.)));
        if code == Code::Signed {
            numbers.extend(numbers.clone().iter().map(|number| -number));
        }
        let sorted = of_the_paper(code);
        let mut codes = vec![0; numbers.len()];
        code.encode(&numbers, 1., &mut codes, |_| 0.5);
        for (&number, coded) in numbers.iter().zip(codes) {
            let (number, coded) = (f64::from(number), code.values()[usize::from(coded)]);
            let above = sorted.partition_point(|value| *value < number).min(255);
            let near = [above.saturating_sub(1), above].map(|i| (sorted[i] - number).abs());
            let mut nearest = near[0].min(near[1]);
            if code == Code::Unsigned && number > 0. && number < sorted[1] {
                // It does not become 0.
                nearest = sorted[1] - number;
            }
            let error = (f64::from(coded) - number).abs();
            // Roundings of f32 where two are equally near.
            assert!(error <= nearest + 1e-6 * number.abs() + 1e-13, "{number}");
        }
    }
}

/// Each number becomes one of its two neighbours in the code, and in the mean of all chances itself.
#[test]
fn coding_at_random_is_right_in_the_mean() {
    const CHANCES: usize = 64;
    for code in CODES {
        let sorted = of_the_paper(code);
        let numbers = (1..3000).map(|i| 10f32.powf(-8. * i as f32 / 3000.));
        // A second moment does not fall below the lowest number.
        let least = if code == Code::Signed { 0. } else { sorted[1] };
        for number in numbers.filter(|number| f64::from(*number) > least) {
            let above = sorted.partition_point(|value| *value < f64::from(number));
            let (below, above) = (sorted[above - 1], sorted[above]);
            let mut codes = [0; CHANCES];
            let chance = |i| (i as f32 + 0.5) / CHANCES as f32;
            code.encode(&[number; CHANCES], 1., &mut codes, chance);
            let coded = codes.map(|coded| f64::from(code.values()[usize::from(coded)]));
            for coded in coded {
                let distance = (coded - below).abs().min((coded - above).abs());
                assert!(distance < 1e-6 * above, "{number}: {coded} {below} {above}");
            }
            let mean = coded.iter().sum::<f64>() / CHANCES as f64;
            // The chances are a 64th apart; arithmetic in f32 moves the border between two of them.
            let error = (mean - f64::from(number)).abs();
            assert!(
                error <= (above - below) / CHANCES as f64 + 1e-6 * above,
                "{number}: {mean}"
            );
        }
    }
}

#[test]
fn a_second_moment_that_is_not_0_stays_above_0() {
    let values: Vec<f32> = (0..38).map(|i| 10f32.powi(-i)).chain([0.]).collect();
    for chance in [0., 0.5, 0.999_999] {
        let mut bytes = store(Code::Unsigned, &values);
        Code::Unsigned.store_by(&values, &mut bytes, |_| chance);
        let loaded = load(Code::Unsigned, &bytes);
        assert!(loaded[..38].iter().all(|value| *value > 0.), "{loaded:?}");
        assert_eq!((loaded[0], loaded[38]), (1., 0.));
    }
}

#[test]
fn edges_are_kept() {
    for code in CODES {
        for edge in [1., -1., f32::MAX, f32::MIN_POSITIVE, 1e-30, -3e38] {
            if edge < 0. && code == Code::Unsigned {
                continue;
            }
            let mut values = vec![edge / 1000.; 300];
            (values[7], values[299]) = (edge, edge);
            let loaded = load(code, &store(code, &values));
            assert_eq!((loaded[7], loaded[299]), (edge, edge), "{edge:e}");
        }
        // A block of zeros is zero bytes: new state.
        assert_eq!(store(code, &[0.; 300]), vec![0; bytes_of(300)]);
        assert_eq!(store(code, &[1e-45; 3]), vec![0; bytes_of(3)]);
        for bad in [f32::NAN, f32::INFINITY] {
            if bad == f32::INFINITY && code == Code::Unsigned {
                continue;
            }
            let mut values = [1.; 600];
            values[300] = bad;
            let loaded = load(code, &store(code, &values));
            let is_nan: Vec<_> = loaded.chunks(256).map(|block| block[0].is_nan()).collect();
            assert_eq!(is_nan, [false, true, false]);
        }
    }
}

/// The square of a gradient may be infinite. It is kept as the largest number, and its block with it.
#[test]
fn a_second_moment_that_overflowed_stays_finite() {
    let mut values = [1.; 300];
    // Also beside what is so small that its part of the largest is 0.
    (values[7], values[8], values[9]) = (f32::INFINITY, f32::MAX, 1e-45);
    let loaded = load(Code::Unsigned, &store(Code::Unsigned, &values));
    assert_eq!(
        (loaded[7], loaded[8], loaded[299]),
        (f32::MAX, f32::MAX, 1.)
    );
    assert!(loaded.iter().all(|value| value.is_finite() && *value > 0.));
    values[10] = f32::NAN;
    let loaded = load(Code::Unsigned, &store(Code::Unsigned, &values));
    assert!(loaded[..256].iter().all(|value| value.is_nan()));
}

fn element() -> impl Strategy<Value = f32> {
    prop_oneof![
        6 => -1f32..1.,
        2 => prop::num::f32::NORMAL,
        1 => prop::num::f32::SUBNORMAL,
        2 => Just(0.),
        1 => prop::sample::select(vec![f32::MAX, f32::MIN, 1e38, 1., -1., -0.]),
        3 => (-45f32..0.).prop_map(|power| 10f32.powf(power)),
    ]
}

fn block() -> impl Strategy<Value = Vec<f32>> {
    let mixed = prop::collection::vec(element(), 0..600);
    let small = prop::collection::vec(prop::num::f32::SUBNORMAL, 1..300);
    // The smallest blocks whose numbers are all normal ones.
    let faint = prop::collection::vec(-1e-30f32..1e-30, 1..300).prop_map(|mut block| {
        block[0] = 1e-30;
        block
    });
    let equal = (element(), 1usize..600).prop_map(|(value, len)| vec![value; len]);
    prop_oneof![4 => mixed, 1 => small, 1 => faint, 1 => equal]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// What is saved and loaded again has the same bytes.
    #[test]
    fn what_was_coded_once_stays_the_same(values in block()) {
        for code in CODES {
            let values: Vec<f32> = match code {
                Code::Signed => values.clone(),
                Code::Unsigned => values.iter().map(|value| value.abs()).collect(),
            };
            let bytes = store(code, &values);
            // As the loop that any machine has, not compiled for wide vectors.
            let mut plain = vec![0xaa; bytes.len()];
            code.write(&values, &mut plain, |_| 0.5);
            prop_assert_eq!(&plain, &bytes);
            let loaded = load(code, &bytes);
            prop_assert_eq!(&store(code, &loaded), &bytes);
            // No code is further off than half of the widest step of the code: a quarter of the largest element's decade.
            for (values, loaded) in values.chunks(BLOCK).zip(loaded.chunks(BLOCK)) {
                let largest = values.iter().fold(0f32, |most, value| most.max(value.abs()));
                for (value, loaded) in values.iter().zip(loaded) {
                    let error = (f64::from(*value) - f64::from(*loaded)).abs();
                    let bound = 0.0071 * f64::from(largest) + f64::from(f32::MIN_POSITIVE);
                    prop_assert!(error <= bound, "{} {}", value, loaded);
                }
            }
        }
    }
}
