//! What candle's operations compute on other devices, against tiles.

use candle_core::{Device, Result, Tensor};

use super::super::rule::{Attention, Rule};
use super::super::tiles;

fn numbers(shape: &[usize], factor: f64) -> Result<Tensor> {
    let len: usize = shape.iter().product();
    let numbers = (0..len).map(|i| 2. * (factor * (i + 1) as f64).sin());
    Tensor::from_iter(numbers, &Device::Cpu)?.reshape(shape)
}

#[test]
fn chunks_agree_with_tiles() -> Result<()> {
    let [q, k, v] = [
        numbers(&[2, 4, 3, 4], 1.3)?,
        numbers(&[2, 2, 5, 4], 0.7)?,
        numbers(&[2, 2, 5, 6], 0.9)?,
    ];
    let gradient = numbers(&[2, 4, 3, 6], 1.1)?;
    let numbers = [-1e4, -1e9, f32::MIN.into(), -1e300, f64::NEG_INFINITY];
    for number in numbers {
        let mut values = [0f64; 15];
        values[1..3].fill(number);
        values[5..10].fill(number);
        let mask = Tensor::new(&values, &Device::Cpu)?.reshape((3, 5))?;
        let options = Attention::default().mask(&mask);
        let slopes = Tensor::new(&[0.5, 0.25, 0.125, 0.0625], &Device::Cpu)?;
        let many = options.clone().causal().softcap(1.5).dropout(0.3);
        for options in [options, many.alibi(&slopes)] {
            let rule = Rule::new(&q, &k, &v, &options)?;
            let (expected, of_tiles) = tiles::forward::<f64>(&rule, [&q, &k, &v])?;
            let of_output = expected.transpose(1, 2)?;
            let all = [&q, &k, &v, &of_output, &gradient];
            let plain = tiles::backward::<f64>(&rule, all, &of_tiles)?;
            // A query of a key head; a key head; a sample; all.
            for most in [1, 30, 60, 1000] {
                let (output, statistics) = super::forward(&rule, [&q, &k, &v], most)?;
                // With the gradient of the mask, chunks of some queries have all heads.
                let [dq, dk, dv, _] = super::backward(&rule, all, &statistics, true, most)?;
                let found = super::backward(&rule, all, &statistics, false, most)?;
                let found = found.into_iter().chain([dq, dk, dv]).flatten();
                let found: Vec<_> = found.collect();
                let plain: Vec<_> = plain.iter().flatten().collect();
                let pairs = found.iter().zip(plain.iter().chain(&plain).copied());
                for (a, b) in pairs.chain([(&output, &expected)]) {
                    let off = (a - b)?.abs()?.max_all()?.to_scalar::<f64>()?;
                    assert!(off < 1e-12, "{number:e}, {most} scores: {off:e} off");
                }
            }
        }
    }
    Ok(())
}
