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
        for options in [options.clone(), options.causal().softcap(1.5).dropout(0.3)] {
            let rule = Rule::new(&q, &k, &v, &options)?;
            let (output, statistics) = super::forward(&rule, [&q, &k, &v])?;
            let (expected, of_tiles) = tiles::forward::<f64>(&rule, [&q, &k, &v])?;
            let all = [&q, &k, &v, &output.transpose(1, 2)?, &gradient];
            let found = super::backward(&rule, all, &statistics, false)?;
            let plain = tiles::backward::<f64>(&rule, all, &of_tiles)?;
            let pairs = found.iter().flatten().zip(plain.iter().flatten());
            for (a, b) in pairs.chain([(&output, &expected)]) {
                let off = (a - b)?.abs()?.max_all()?.to_scalar::<f64>()?;
                assert!(off < 1e-12, "{number:e}: {off:e} off");
            }
        }
    }
    Ok(())
}
