use std::path::Path;

use candle_core::{D, DType, Device, Module, Result, Tensor, Var, safetensors};
use candle_headroom_nn::loss::{LinearCrossEntropy, linear_cross_entropy};
use candle_headroom_nn::quantized::{FrozenLinear, FrozenWeight, Nf4};
use candle_headroom_nn::{Linear, recompute};

use crate::check::{
    STRIDES, difference, differentiate, factors, frozen, numbers, rounding, same_bits,
};

/// The weight that scripts/compare-nf4.py quantizes with bitsandbytes.
fn compared() -> Result<Tensor> {
    let values = (0..30_000u64).map(|index| {
        let number = (index * 2_654_435_761 % (1 << 32)) >> 20;
        let power = (index / 64 * 7 % 5) as i32 - 2;
        (number as f32 - 2048.) / 4096. * 2f32.powi(power)
    });
    Tensor::from_iter(values, &Device::Cpu)?.reshape((300, 100))
}

#[test]
fn nf4_has_the_values_of_bitsandbytes() -> Result<()> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/nf4.safetensors");
    let theirs = safetensors::load(file, &Device::Cpu)?;
    let bytes = |name: &str| theirs[name].to_vec1::<u8>();
    let floats = |name: &str| theirs[name].to_vec1::<f32>();
    let (codes, scales, mean) = (bytes("codes")?, bytes("scales")?, floats("mean")?[0]);
    let (of_scales, map, table) = (floats("of_scales")?, floats("map")?, floats("numbers")?);
    let expected = (0..30_000).map(|at| {
        let code = codes[at / 2] >> (4 * (1 - at % 2)) & 15;
        let block = at / 64;
        let scale = map[scales[block] as usize] * of_scales[block / 256] + mean;
        table[code as usize] * scale
    });
    let expected = Tensor::from_iter(expected, &Device::Cpu)?.reshape((300, 100))?;
    let weight = compared()?;
    let found = FrozenWeight::from(Nf4::quantize(&weight, &Device::Cpu)?);
    same_bits(&found.dequantize()?, &expected)?;
    // 15,000 bytes of codes, 469 of scales, two f32 of these, and the numbers that codes stand for.
    assert_eq!(found.bytes(), 15_000 + 469 + 8 + 4 * (16 + 256));
    // Numbers of 12 bits are the same in f16, and rows need not follow each other.
    for other in [weight.to_dtype(DType::F16)?, weight.t()?.contiguous()?.t()?] {
        let found = FrozenWeight::from(Nf4::quantize(&other, &Device::Cpu)?);
        same_bits(&found.dequantize()?, &expected)?;
    }
    Ok(())
}

#[test]
fn nf4_is_cut_into_slices_without_a_difference() -> Result<()> {
    // More than 2^20 elements, which are quantized at a time; rows are no multiple of a block.
    let weight = numbers(&[10_500, 101], 3).to_dtype(DType::F32)?;
    let whole = FrozenWeight::from(Nf4::quantize(&weight, &Device::Cpu)?).dequantize()?;
    let off = difference(&whole.to_dtype(DType::F64)?, &weight.to_dtype(DType::F64)?);
    // Half of the largest distance of two numbers, and the rounding of the scale.
    assert!((0.1..0.16).contains(&off), "{off}");
    // A block at a time, but for the double quantization, whose scales have 8 bits.
    let first = weight.narrow(0, 0, 64)?;
    let first = FrozenWeight::from(Nf4::quantize(&first, &Device::Cpu)?).dequantize()?;
    let off = difference(
        &first.to_dtype(DType::F64)?,
        &whole.narrow(0, 0, 64)?.to_dtype(DType::F64)?,
    );
    assert!(off < 0.01, "{off}");
    Ok(())
}

#[test]
fn what_is_no_weight_is_an_error() -> Result<()> {
    let cpu = &Device::Cpu;
    let quantize = |weight: &Tensor| {
        Nf4::quantize(weight, cpu)
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    assert!(quantize(&Tensor::ones(64, DType::F32, cpu)?).contains("rank"));
    assert!(quantize(&Tensor::ones((0, 64), DType::F32, cpu)?).contains("no element"));
    for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = vec![1f32; 640];
        values[130] = wrong;
        let text = quantize(&Tensor::from_vec(values, (10, 64), cpu)?);
        assert!(
            text.contains("row 2") && text.contains("not finite"),
            "{text}"
        );
    }
    // All zeros are zeros.
    let zeros = Tensor::zeros((3, 50), DType::F32, cpu)?;
    same_bits(
        &FrozenWeight::from(Nf4::quantize(&zeros, cpu)?).dequantize()?,
        &zeros,
    )?;
    let weight = || Tensor::ones((6, 64), DType::F32, cpu);
    let bias = Tensor::ones(5, DType::F32, cpu)?;
    assert!(FrozenLinear::new(weight()?, Some(bias)).is_err());
    assert!(FrozenLinear::new(Tensor::ones(6, DType::F32, cpu)?, None).is_err());
    let layer = FrozenLinear::new(Nf4::quantize(&weight()?, cpu)?, None)?;
    for shape in [&[64][..], &[2, 63], &[0, 64]] {
        assert!(
            layer
                .forward(&Tensor::zeros(shape, DType::F32, cpu)?)
                .is_err()
        );
    }
    let counts = Tensor::ones((2, 64), DType::U32, cpu)?;
    let error = layer.forward(&counts).unwrap_err().to_string();
    assert!(error.contains("frozen_linear"), "{error}");
    Ok(())
}

#[test]
fn products_and_gradients_are_those_of_the_dequantized_weight() -> Result<()> {
    // One slice of rows, and two.
    for rows in [9, 4100] {
        for (name, weight) in frozen(&numbers(&[rows, 256], 5), &Device::Cpu)? {
            let bias = numbers(&[rows], 6);
            let exact = weight.dequantize()?.to_dtype(DType::F64)?;
            for input in [DType::F64, DType::F32, DType::F16, DType::BF16] {
                let xs = [
                    numbers(&[2, 3, 256], 1).to_dtype(input)?,
                    bias.to_dtype(input)?,
                ];
                let layer = |x: &[Tensor]| {
                    FrozenLinear::new(weight.clone(), Some(x[1].clone()))?.forward(&x[0])
                };
                let (ys, gradients) = differentiate(&layer, &xs, STRIDES[0])?;
                let flat = xs[0].to_dtype(DType::F64)?.flatten_to(1)?;
                let expected = flat
                    .matmul(&exact.t()?)?
                    .broadcast_add(&xs[1].to_dtype(DType::F64)?)?;
                let off = difference(&ys, &expected.reshape((2, 3, rows))?);
                assert!(off <= rounding(input), "{name} {input:?}: {off:e} off");
                let dys = factors(ys.dims()).flatten_to(D::Minus2)?;
                let expected = [dys.matmul(&exact)?.reshape((2, 3, 256))?, dys.sum(0)?];
                for (found, expected) in gradients.iter().zip(&expected) {
                    let off = difference(found, expected);
                    assert!(off <= rounding(input), "{name} {input:?}: {off:e} off");
                }
            }
        }
    }
    Ok(())
}

/// By their norms, in f32, as the issue of few bits states it: the same weight, dequantized once.
#[test]
fn gradients_against_the_dequantized_weight() -> Result<()> {
    let mut worst = 0f64;
    for (name, weight) in frozen(&numbers(&[6000, 256], 5), &Device::Cpu)? {
        let gradient = |layer: &dyn Module| -> Result<Tensor> {
            let xs = Var::from_tensor(&numbers(&[16, 256], 1).to_dtype(DType::F32)?)?;
            let ys = layer.forward(&xs)?;
            let dys = factors(ys.dims()).to_dtype(DType::F32)?;
            let mut store = (ys * dys)?.sum_all()?.backward()?;
            store.remove(&xs).expect("a gradient").to_dtype(DType::F64)
        };
        let whole = gradient(&Linear::new(weight.dequantize()?, None))?;
        let found = gradient(&FrozenLinear::new(weight, None)?)?;
        let norm = |tensor: &Tensor| tensor.sqr()?.sum_all()?.to_scalar::<f64>();
        let off = (norm(&(found - &whole)?)? / norm(&whole)?).sqrt();
        println!("{name}: {off:e}");
        worst = worst.max(off);
    }
    println!("figure: qlora/gradient_error_vs_dequantized_f32 = {worst:.1e} of the norm");
    assert!(worst <= 1e-6, "{worst:e}");
    Ok(())
}

/// Where nothing is trained, a row has the bits that it has in training, whatever stands beside it.
#[test]
fn an_evaluation_has_the_numbers_of_training() -> Result<()> {
    for (name, weight) in frozen(&numbers(&[9, 256], 5), &Device::Cpu)? {
        let layer = FrozenLinear::new(weight, None)?;
        let xs = numbers(&[4, 256], 1).to_dtype(DType::F32)?;
        let var = Var::from_tensor(&xs)?;
        let plain = layer.forward(&xs)?;
        same_bits(&layer.forward(&var)?, &plain)?;
        let (inner, gradient) = (layer.clone(), |ys: Tensor| -> Result<Tensor> {
            let mut store = ys.sqr()?.sum_all()?.backward()?;
            Ok(store.remove(&var).expect("a gradient"))
        });
        let again = recompute(var.as_tensor(), move |x| inner.forward(x))?;
        same_bits(&again, &plain)?;
        same_bits(&gradient(again)?, &gradient(layer.forward(&var)?)?)?;
        println!("{name}");
    }
    Ok(())
}

/// A gradient that nobody asks for is not computed, and a bias may be trained alone.
#[test]
fn a_bias_is_trained_alone() -> Result<()> {
    let weight = Nf4::quantize(&numbers(&[9, 64], 5), &Device::Cpu)?;
    let bias = Var::zeros(9, DType::F32, &Device::Cpu)?;
    let layer = FrozenLinear::new(weight, Some(bias.as_tensor().clone()))?;
    let xs = numbers(&[4, 64], 1).to_dtype(DType::F32)?;
    let store = layer.forward(&xs)?.sum_all()?.backward()?;
    let gradient = store.get(&bias).expect("a gradient").to_vec1::<f32>()?;
    assert_eq!(gradient, [4.; 9]);
    Ok(())
}

#[test]
fn a_loss_and_an_embedding_are_those_of_the_dequantized_weight() -> Result<()> {
    // On the CPU 4 MiB are dequantized at a time: one slice, and two.
    for classes in [70, 4100] {
        let targets = Tensor::from_iter((0..6u32).map(|at| at * 13 % 70), &Device::Cpu)?;
        let tokens = Tensor::new(&[[3u32, 0], [69, 3]], &Device::Cpu)?;
        for (name, weight) in frozen(&numbers(&[classes, 256], 5), &Device::Cpu)? {
            let exact = weight.dequantize()?.to_dtype(DType::F64)?;
            let options = LinearCrossEntropy::default().z_loss(0.1).chunk_rows(4);
            for input in [DType::F64, DType::F32, DType::BF16] {
                let xs = numbers(&[6, 256], 1).to_dtype(input)?;
                let of = |xs: &[Tensor]| linear_cross_entropy(&xs[0], &weight, &targets, &options);
                let plain =
                    |xs: &[Tensor]| linear_cross_entropy(&xs[0], &exact, &targets, &options);
                let (loss, found) = differentiate(&of, std::slice::from_ref(&xs), STRIDES[0])?;
                let wide = [xs.to_dtype(DType::F64)?];
                let (expected, gradients) = differentiate(&plain, &wide, STRIDES[0])?;
                // Logits of some tens are rounded in f32 before their exponentials are summed.
                assert!(difference(&loss, &expected) < 3e-5, "{name} of {input:?}");
                let off = difference(&found[0], &gradients[0]);
                assert!(
                    off < rounding(input).max(3e-5),
                    "{name} of {input:?}: {off}"
                );
            }
            let other = numbers(&[6, 255], 1).to_dtype(DType::F32)?;
            assert!(linear_cross_entropy(&other, &weight, &targets, &options).is_err());
            match weight.embedding(&tokens) {
                Ok(rows) => {
                    let expected = exact.index_select(&tokens.flatten_all()?, 0)?;
                    let expected = expected.reshape((2, 2, 256))?.to_dtype(rows.dtype())?;
                    same_bits(&rows, &expected)?;
                }
                Err(error) => assert!(name == "NF4" && error.to_string().contains("NF4"), "{name}"),
            }
        }
    }
    Ok(())
}
