use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{D, DType, Device, Module, Result, Tensor, Var, quantized};
use candle_headroom_nn::quantized::QMatMul;
use candle_headroom_nn::{recompute, seeded};

use crate::check::{STRIDES, difference, differentiate, factors, numbers, rounding, same_bits};

const TYPES: [GgmlDType; 9] = [
    GgmlDType::F32,
    GgmlDType::F16,
    GgmlDType::Q4_0,
    GgmlDType::Q5_1,
    GgmlDType::Q8_0,
    GgmlDType::Q2K,
    GgmlDType::Q4K,
    GgmlDType::Q6K,
    GgmlDType::Q8K,
];

fn weight(rows: usize, dtype: GgmlDType) -> Result<Arc<QTensor>> {
    Ok(Arc::new(QTensor::quantize(
        &numbers(&[rows, 256], 5),
        dtype,
    )?))
}

#[test]
fn the_gradient_is_that_of_the_dequantized_weight() -> Result<()> {
    for dtype in TYPES {
        let weight = weight(9, dtype)?;
        let layer = QMatMul::from_arc(weight.clone())?;
        let exact = weight.dequantize(&Device::Cpu)?.to_dtype(DType::F64)?;
        for shape in [&[4, 256][..], &[2, 3, 256], &[2, 1, 3, 256]] {
            for input in [DType::F32, DType::F16, DType::BF16] {
                // candle multiplies in the type to which it dequantizes these.
                if matches!(dtype, GgmlDType::F32 | GgmlDType::F16) && input != DType::F32 {
                    continue;
                }
                let xs = [numbers(shape, 1).to_dtype(input)?];
                for strides in STRIDES {
                    let (ys, gradients) = differentiate(&|x| layer.forward(&x[0]), &xs, strides)?;
                    let expected = factors(ys.dims()).flatten_to(D::Minus2)?.matmul(&exact)?;
                    let off = difference(&gradients[0], &expected_in(&gradients[0], &expected)?);
                    assert!(
                        off <= rounding(input),
                        "{dtype:?} {input:?} {strides:?}: {off:e} off"
                    );
                }
            }
        }
    }
    Ok(())
}

/// The gradient of what was laid out: that of the input, or with zeros before it, or transposed.
fn expected_in(gradient: &Tensor, expected: &Tensor) -> Result<Tensor> {
    let dims = gradient.dims();
    let (rows, last) = (dims[dims.len() - 2], dims[dims.len() - 1]);
    if last == 512 {
        let zeros = expected.zeros_like()?;
        return Tensor::cat(&[&zeros, expected], D::Minus1)?.reshape(dims);
    }
    if rows == 256 {
        let mut transposed = dims.to_vec();
        let len = dims.len();
        transposed.swap(len - 1, len - 2);
        return expected
            .reshape(transposed)?
            .transpose(D::Minus1, D::Minus2)?
            .contiguous();
    }
    expected.reshape(dims)
}

#[test]
fn rows_are_dequantized_in_several_chunks() -> Result<()> {
    // A chunk has 4096 rows of this width.
    let weight = weight(9000, GgmlDType::Q4_0)?;
    let layer = QMatMul::from_arc(weight.clone())?;
    let xs = Var::from_tensor(&numbers(&[3, 256], 1).to_dtype(DType::F32)?)?;
    let ys = layer.forward(&xs)?;
    let dys = numbers(ys.dims(), 2).to_dtype(DType::F32)?;
    let mut store = (ys * &dys)?.sum_all()?.backward()?;
    let found = store
        .remove(&xs)
        .expect("a gradient")
        .to_dtype(DType::F64)?;
    let exact = weight.dequantize(&Device::Cpu)?.to_dtype(DType::F64)?;
    let off = difference(&found, &dys.to_dtype(DType::F64)?.matmul(&exact)?);
    assert!(off <= rounding(DType::F32), "{off:e} off");
    Ok(())
}

#[test]
fn forward_equals_candles_bit_by_bit() -> Result<()> {
    for dtype in TYPES {
        let weight = weight(9, dtype)?;
        let ours = QMatMul::from_arc(weight.clone())?;
        let theirs = quantized::QMatMul::from_arc(weight)?;
        for shape in [&[4, 256][..], &[2, 3, 256]] {
            let xs = numbers(shape, 1).to_dtype(DType::F32)?;
            same_bits(&ours.forward(&xs)?, &theirs.forward(&xs)?)?;
            same_bits(&ours.forward_via_f16(&xs)?, &theirs.forward_via_f16(&xs)?)?;
        }
        let ids = Tensor::new(&[3u32, 0], &Device::Cpu)?;
        same_bits(&ours.embedding(&ids)?, &theirs.embedding(&ids)?)?;
        same_bits(&ours.dequantize_f16()?, &theirs.dequantize_f16()?)?;
    }
    Ok(())
}

#[test]
fn forward_via_f16_has_a_gradient() -> Result<()> {
    let weight = weight(9, GgmlDType::Q8_0)?;
    let layer = QMatMul::from_arc(weight.clone())?;
    let xs = Var::from_tensor(&numbers(&[2, 256], 1).to_dtype(DType::F32)?)?;
    let mut store = layer.forward_via_f16(&xs)?.sum_all()?.backward()?;
    let found = store.remove(&xs).expect("a gradient");
    let expected = weight
        .dequantize(&Device::Cpu)?
        .sum_keepdim(0)?
        .broadcast_as((2, 256))?;
    assert!(
        difference(
            &found.to_dtype(DType::F64)?,
            &expected.to_dtype(DType::F64)?
        ) < 1e-5
    );
    Ok(())
}

#[test]
fn a_weight_in_f16_does_not_round_the_gradient() -> Result<()> {
    let weight = numbers(&[5000, 256], 5).to_dtype(DType::F16)?;
    let layer = QMatMul::TensorF16(weight.clone());
    let xs = Var::from_tensor(&numbers(&[2, 256], 1).to_dtype(DType::F32)?)?;
    // Most are larger than any number of f16.
    let dys = (numbers(&[2, 5000], 2) * 1e5)?.to_dtype(DType::F32)?;
    let mut store = (layer.forward(&xs)? * &dys)?.sum_all()?.backward()?;
    let found = store.remove(&xs).expect("a gradient");
    let exact = dys
        .to_dtype(DType::F64)?
        .matmul(&weight.to_dtype(DType::F64)?)?;
    let off = difference(&found.to_dtype(DType::F64)?, &exact);
    assert!(off <= rounding(DType::F32), "{off:e} off");
    Ok(())
}

#[test]
fn wrong_inputs_are_errors() -> Result<()> {
    let layer = QMatMul::from_arc(weight(9, GgmlDType::Q4_0)?)?;
    for shape in [&[256][..], &[2, 255], &[0, 256]] {
        assert!(
            layer
                .forward(&Tensor::zeros(shape, DType::F32, &Device::Cpu)?)
                .is_err()
        );
    }
    assert!(
        layer
            .forward(&Tensor::zeros((2, 256), DType::U32, &Device::Cpu)?)
            .is_err()
    );
    let ids = Tensor::zeros((1, 1), DType::U32, &Device::Cpu)?;
    let xs = Tensor::zeros((1, 1, 256), DType::F32, &Device::Cpu)?;
    assert!(layer.indexed_moe_forward(&xs, &ids).is_err());
    Ok(())
}

/// In training a product is that with the dequantized weight, to rounding: candle's rounds x to 8 bits, which is a hundred times as much.
#[test]
fn training_takes_the_dequantized_weight() -> Result<()> {
    for dtype in TYPES {
        // Two parts of rows of this width.
        for rows in [9, 4100] {
            let weight = weight(rows, dtype)?;
            let layer = QMatMul::from_arc(weight.clone())?;
            let exact = weight.dequantize(&Device::Cpu)?.to_dtype(DType::F64)?;
            for input in [DType::F64, DType::F32, DType::F16, DType::BF16] {
                if !matches!(layer, QMatMul::QTensor(_)) {
                    continue;
                }
                let xs = numbers(&[2, 3, 256], 1).to_dtype(input)?;
                let var = Var::from_tensor(&xs)?;
                let trained = layer.forward(&var)?;
                let seeded = seeded(1, || layer.forward(&xs))?;
                same_bits(&trained, &seeded)?;
                assert_eq!(
                    (trained.dims(), trained.dtype()),
                    (&[2, 3, rows][..], input)
                );
                let wide = xs.to_dtype(DType::F64)?.flatten_to(1)?;
                let expected = wide.matmul(&exact.t()?)?.reshape((2, 3, rows))?;
                let off = difference(&trained.to_dtype(DType::F64)?, &expected);
                assert!(off <= rounding(input), "{dtype:?} {input:?}: {off:e} off");
            }
        }
    }
    Ok(())
}

/// The two runs of a region agree, though only the second one is in a graph.
#[test]
fn a_region_runs_twice_alike() -> Result<()> {
    let weight = weight(9, GgmlDType::Q4K)?;
    let layer = Arc::new(QMatMul::from_arc(weight.clone())?);
    let xs = Var::from_tensor(&numbers(&[4, 256], 1).to_dtype(DType::F32)?)?;
    let (inner, plain) = (layer.clone(), layer.forward(&xs)?);
    let ys = recompute(xs.as_tensor(), move |x| inner.forward(x))?;
    same_bits(&ys, &plain)?;
    let gradient = |ys: Tensor| -> Result<Tensor> {
        let mut store = ys.sqr()?.sum_all()?.backward()?;
        Ok(store.remove(&xs).expect("a gradient"))
    };
    same_bits(&gradient(ys)?, &gradient(plain)?)
}
