use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor};
use candle_headroom::DeviceMemory;
use candle_headroom::nn::quantized::{FrozenLinear, FrozenWeight, Nf4, QMatMul};
use candle_headroom::nn::{Activation, Embedding, Linear, PReLU, loss, ops};

use super::{NOISE, assert_kept, var};
use crate::support::alone;

#[test]
fn cross_entropy_keeps_a_number_for_each_row() -> Result<()> {
    let _alone = alone();
    // The numbers are more than the noise.
    let rows = 262_144;
    let (logits, _) = var(&[rows, 8])?;
    let targets = Tensor::zeros(rows, DType::U32, &Device::Cpu)?;
    let numbers = rows * DType::F32.size_in_bytes();
    assert_kept("cross_entropy", numbers, || {
        loss::cross_entropy(&logits, &targets)
    });
    assert_kept("nll", 0, || loss::nll(&logits, &targets));
    // The sums of these are over copies, which are not kept.
    assert_kept("mse", 0, || loss::mse(&logits, &logits));
    assert_kept("huber", 0, || loss::huber(&logits, &logits, 1.));
    assert_kept("binary_cross_entropy", 0, || {
        loss::binary_cross_entropy_with_logit(&logits, &logits)
    });
    Ok(())
}

#[test]
fn embedding_keeps_its_output() -> Result<()> {
    let _alone = alone();
    let (table, _) = var(&[64, 32])?;
    let ids = Tensor::zeros((16, 1024), DType::U32, &Device::Cpu)?;
    for dtype in [DType::F32, DType::BF16] {
        let table = Embedding::new(table.to_dtype(dtype)?, 32);
        let bytes = 16 * 1024 * 32 * dtype.size_in_bytes();
        assert_kept("embedding", bytes, || table.forward(&ids));
    }
    Ok(())
}

#[test]
fn functions_of_each_element_keep_their_output() -> Result<()> {
    let _alone = alone();
    // Numbers kept for each row would be more than the noise, and for each column of the second.
    for shape in [[262_144, 8], [8, 262_144]] {
        let (xs, bytes) = var(&shape)?;
        for dim in [0, 1] {
            assert_kept("softmax", bytes, || ops::softmax(&xs, dim));
            assert_kept("log_softmax", bytes, || ops::log_softmax(&xs, dim));
        }
    }
    let (xs, bytes) = var(&[262_144, 8])?;
    for activation in [
        Activation::Gelu,
        Activation::Silu,
        Activation::Mish,
        Activation::HardSwish,
    ] {
        assert_kept("activation", bytes, || activation.forward(&xs));
    }
    assert_kept("swiglu", bytes / 2, || ops::swiglu(&xs));
    assert_kept("dropout", bytes, || ops::dropout(&xs, 0.1));
    let (slopes, _) = var(&[8])?;
    let prelu = PReLU::new(slopes.as_tensor().clone(), false);
    assert_kept("prelu", bytes, || prelu.forward(&xs));
    // The copies of a strided input are not kept.
    let strided = xs.t()?;
    assert_kept("strided swiglu", bytes / 2, || ops::swiglu(&strided));
    assert_kept("strided softmax", bytes, || ops::softmax(&strided, 1));
    Ok(())
}

#[test]
fn products_keep_their_output() -> Result<()> {
    let _alone = alone();
    let (xs, _) = var(&[4, 16_384, 32])?;
    let ((weight, _), (bias, _)) = (var(&[8, 32])?, var(&[8])?);
    let bytes = 4 * 16_384 * 8 * DType::F32.size_in_bytes();
    let linear = Linear::new(weight.as_tensor().clone(), Some(bias.as_tensor().clone()));
    assert_kept("linear", bytes, || linear.forward(&xs));
    let quantized = QTensor::quantize(&weight, GgmlDType::Q4_0)?;
    let quantized = QMatMul::from_qtensor(quantized)?;
    // candle may keep a rearranged copy of the weight after the first product.
    quantized.forward(&xs.detach())?;
    assert_kept("quantized", bytes, || quantized.forward(&xs));
    let frozen = FrozenLinear::new(Nf4::quantize(&weight, &Device::Cpu)?, None)?;
    assert_kept("frozen", bytes, || frozen.forward(&xs));
    Ok(())
}

/// The codes, the scales as f32 before they are coded, and two slices of 4 MiB: of the input, and of the input in f32.
#[test]
fn quantizing_takes_little_beside_its_result() -> Result<()> {
    let _alone = alone();
    let memory = DeviceMemory::host()
        .open()
        .expect("an allocator that counts");
    let weight = Tensor::ones((4096, 8192), DType::BF16, &Device::Cpu)?;
    let scope = memory.peak_scope();
    let quantized = FrozenWeight::from(Nf4::quantize(&weight, &Device::Cpu)?);
    let rise = |bytes: Option<u64>| bytes.zip(scope.start()).map(|(now, start)| now - start);
    let result = quantized.bytes() as u64;
    assert!(rise(memory.in_use()).expect("bytes").abs_diff(result) < NOISE);
    let scales = 4 * (4096 * 8192 / 64);
    let most = result + scales + (8 << 20) + NOISE;
    let peak = rise(scope.peak()).expect("a peak");
    assert!(peak <= most, "{peak} bytes, expected at most {most}");
    // One of 32 slices of 4 MiB at a time, and the output.
    let layer = FrozenLinear::new(quantized, None)?;
    let xs = Tensor::ones((64, 8192), DType::F32, &Device::Cpu)?;
    let scope = memory.peak_scope();
    let ys = layer.forward(&xs)?;
    let peak = scope.peak().zip(scope.start());
    let peak = peak.map(|(peak, start)| peak - start).expect("a peak");
    let output = (ys.elem_count() * 4) as u64;
    // The multiplication takes some memory too.
    let most = output + (4 << 20) + (3 << 20);
    assert!(peak <= most, "{peak} bytes, expected at most {most}");
    Ok(())
}

#[test]
fn a_bias_takes_no_second_output() -> Result<()> {
    let _alone = alone();
    let (xs, _) = var(&[4096, 16])?;
    let ((weight, _), (bias, _)) = (var(&[1024, 16])?, var(&[1024])?);
    let linear = Linear::new(weight.as_tensor().clone(), Some(bias.as_tensor().clone()));
    let bytes = 4096 * 1024 * DType::F32.size_in_bytes() as u64;
    let memory = DeviceMemory::host()
        .open()
        .expect("an allocator that counts");
    let scope = memory.peak_scope();
    let output = linear.forward(&xs)?;
    let peak = scope.peak().zip(scope.start());
    let peak = peak.map(|(peak, start)| peak - start).expect("a peak");
    // The multiplication takes some memory too.
    assert!(
        peak < bytes + bytes / 4,
        "{peak} bytes for an output of {bytes}"
    );
    drop(output);
    Ok(())
}
