//! Frozen weights in few bits: the kernels that dequantize their rows, and the products with them.

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor, Var};
use candle_headroom::DeviceMemory;
use candle_headroom::memory::PeakScope;
use candle_headroom::nn::Linear;
use candle_headroom::nn::loss::{LinearCrossEntropy, linear_cross_entropy};
use candle_headroom::nn::quantized::{FrozenLinear, FrozenWeight, Nf4};

use crate::check::{FLOATS, difference, factors, frozen, numbers, rounding, same_bits};
use crate::gpu::{MIB, gpu};

fn on_host(tensor: &Tensor) -> Result<Tensor> {
    tensor.to_device(&Device::Cpu)
}

#[test]
fn dequantized_rows_have_the_cpus_bits() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let values = numbers(&[9, 512], 5);
    let pairs = frozen(&values, &Device::Cpu)?
        .into_iter()
        .zip(frozen(&values, &device)?);
    for ((name, here), (_, there)) in pairs {
        let exact = here.dequantize()?;
        let found = on_host(&there.dequantize()?)?
            .flatten_all()?
            .to_vec1::<f32>()?;
        let of_cpu = exact.flatten_all()?.to_vec1::<f32>()?;
        let mut pairs = found.iter().zip(&of_cpu).enumerate();
        let wrong = pairs.find(|(_, (a, b))| a.to_bits() != b.to_bits());
        assert_eq!(wrong, None, "{name}");
        // The product with the identity is the weight, whose numbers are rounded once.
        let layer = FrozenLinear::new(there, None)?;
        for dtype in FLOATS {
            let found = layer.forward(&Tensor::eye(512, dtype, &device)?)?;
            let found = on_host(&found)?.t()?.to_dtype(DType::F64)?;
            let expected = exact.to_dtype(dtype)?.to_dtype(DType::F64)?;
            let off = difference(&found, &expected);
            assert_eq!(off, 0., "{name} in {dtype:?}");
        }
    }
    Ok(())
}

/// A block goes on in the next row, and a row begins within a byte.
#[test]
fn rows_of_nf4_begin_anywhere() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    for shape in [[7, 37], [300, 100], [1, 1]] {
        let values = numbers(&shape, 5).to_dtype(DType::F32)?;
        let on = |device: &Device| FrozenWeight::from(Nf4::quantize(&values, device)?).dequantize();
        same_bits(&on_host(&on(&device)?)?, &on(&Device::Cpu)?)?;
    }
    Ok(())
}

/// Slices of 32 MiB: each pass takes one of them and its result. The backward pass also takes the gradient that it begins with.
#[test]
fn a_product_takes_a_slice_and_its_result() -> Result<()> {
    let gpu = gpu();
    let memory = DeviceMemory::cuda(gpu.ordinal).open().expect("memory");
    let (rows, samples) = (4100, 256);
    for (is_nf4, width) in [(true, 4099), (false, 4128)] {
        let values = numbers(&[rows, width], 5).to_dtype(DType::F32)?;
        let inputs = numbers(&[samples, width], 1).to_dtype(DType::F32)?;
        let run = |device: &Device| -> Result<[Tensor; 2]> {
            let weight = match is_nf4 {
                true => FrozenWeight::from(Nf4::quantize(&values, device)?),
                false => QTensor::quantize_onto(&values, GgmlDType::Q8_0, device)?.into(),
            };
            let layer = FrozenLinear::new(weight, None)?;
            let xs = Var::from_tensor(&inputs.to_device(device)?)?;
            let scope = memory.peak_scope();
            let ys = layer.forward(&xs)?;
            let of_forward = rise(&scope);
            let scope = memory.peak_scope();
            let gradient = ys.backward()?.remove(&xs).expect("a gradient");
            let of_backward = rise(&scope);
            if device.is_cuda() {
                let (slice, result) = (32 * MIB, (samples * width * 4) as u64);
                for (peak, results) in [(of_forward, 1), (of_backward, 2)] {
                    let expected = slice..slice + results * result + MIB;
                    assert!(expected.contains(&peak), "{peak}, expected {expected:?}");
                }
            }
            Ok([on_host(&ys.detach())?, on_host(&gradient)?])
        };
        for (here, there) in run(&Device::Cpu)?.iter().zip(&run(memory.device())?) {
            let [here, there] = [here, there].map(|tensor| tensor.to_dtype(DType::F64));
            let off = difference(&there?, &here?);
            // Sums of 4,100 products, in other orders.
            assert!(off < 1e-5, "{off:e}");
        }
    }
    Ok(())
}

fn rise(scope: &PeakScope) -> u64 {
    let peak = scope.peak().zip(scope.start());
    peak.map(|(peak, start)| peak - start).expect("a peak")
}

/// In bf16: against the same weight that was dequantized once, to bf16 as it is for the product, and to f32.
#[test]
fn gradients_against_the_dequantized_weight() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let norm = |tensor: &Tensor| tensor.sqr()?.sum_all()?.to_scalar::<f64>();
    let (mut worst, mut worst_of_f32) = (0f64, 0f64);
    for (name, weight) in frozen(&numbers(&[512, 256], 5), &device)? {
        let whole = weight.dequantize()?;
        let gradient = |layer: &dyn Module, dtype: DType| -> Result<Tensor> {
            let xs = numbers(&[16, 256], 1).to_dtype(DType::BF16)?;
            let xs = Var::from_tensor(&xs.to_dtype(dtype)?.to_device(&device)?)?;
            let ys = layer.forward(&xs)?;
            let dys = factors(ys.dims()).to_dtype(dtype)?.to_device(&device)?;
            let mut store = (ys * dys)?.sum_all()?.backward()?;
            on_host(&store.remove(&xs).expect("a gradient"))?.to_dtype(DType::F64)
        };
        let found = gradient(&FrozenLinear::new(weight, None)?, DType::BF16)?;
        let alike = gradient(
            &Linear::new(whole.to_dtype(DType::BF16)?, None),
            DType::BF16,
        )?;
        let exact = gradient(&Linear::new(whole, None), DType::F32)?;
        let off =
            |from: &Tensor| -> Result<f64> { Ok((norm(&(&found - from)?)? / norm(from)?).sqrt()) };
        println!(
            "{name}: {:.1e} alike, {:.1e} from f32",
            off(&alike)?,
            off(&exact)?
        );
        worst = worst.max(off(&alike)?);
        worst_of_f32 = worst_of_f32.max(off(&exact)?);
    }
    println!("figure: qlora/gradient_error_vs_dequantized = {worst:.1e} of the norm");
    println!(
        "figure: qlora/gradient_error_vs_dequantized_f32_weight = {worst_of_f32:.1e} of the norm"
    );
    assert!(worst <= 1e-3, "{worst:e}");
    // The weight and the gradient are rounded to bf16, by up to 2^-8 each. That of the gradient alone is 1.6e-3 of its norm.
    assert!(worst_of_f32 <= 3e-3, "{worst_of_f32:e}");
    Ok(())
}

#[test]
fn a_frozen_head_and_a_frozen_table_have_the_cpus_results() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let values = numbers(&[300, 256], 5);
    let targets = Tensor::from_iter((0..6u32).map(|at| at * 13), &Device::Cpu)?;
    let options = LinearCrossEntropy::default().z_loss(0.1).chunk_rows(4);
    let tokens = |device: &Device| Tensor::new(&[[3u32, 0], [299, 300]], device);
    let pairs = frozen(&values, &Device::Cpu)?
        .into_iter()
        .zip(frozen(&values, &device)?);
    for ((name, here), (_, there)) in pairs {
        for dtype in FLOATS {
            let loss = |weight: &FrozenWeight, device: &Device| -> Result<[Tensor; 2]> {
                let hidden = numbers(&[6, 256], 1).to_dtype(dtype)?.to_device(device)?;
                let hidden = Var::from_tensor(&hidden)?;
                let loss = linear_cross_entropy(&hidden, weight, &targets, &options)?;
                let gradient = loss.backward()?.remove(&hidden).expect("a gradient");
                let wide = |tensor: Tensor| on_host(&tensor)?.to_dtype(DType::F64);
                Ok([wide(loss)?, wide(gradient)?])
            };
            let ([loss_here, here], [loss_there, there]) =
                (loss(&here, &Device::Cpu)?, loss(&there, &device)?);
            // On a GPU the weight, the logits' gradients and the result are rounded to 16 bits, on the CPU the result alone.
            let limit = (3. * rounding(dtype)).max(3e-5);
            for (a, b) in [(loss_here, loss_there), (here, there)] {
                let off = difference(&b, &a);
                assert!(off < limit, "{name} of {dtype:?}: {off}");
            }
        }
        let Ok(rows) = there.embedding(&tokens(&device)?) else {
            assert_eq!(name, "NF4");
            continue;
        };
        let inside = |tokens: Tensor| tokens.flatten_all()?.narrow(0, 0, 3);
        let rows = on_host(&rows)?.reshape((4, 256))?;
        let expected = here.embedding(&inside(tokens(&Device::Cpu)?)?)?;
        same_bits(&rows.narrow(0, 0, 3)?, &expected)?;
        // There is no row 300.
        let none = rows.get(3)?.to_vec1::<f32>()?;
        assert!(none.iter().all(|x| x.is_nan()), "{name}");
    }
    Ok(())
}

/// A weight of numbers beside inputs of another type is cast forward, and sums are wide backward.
#[test]
fn a_weight_of_numbers_in_another_type() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let values = numbers(&[9, 64], 5);
    for (of_weight, of_input) in [
        (DType::F32, DType::BF16),
        (DType::F16, DType::BF16),
        (DType::BF16, DType::F32),
        (DType::BF16, DType::BF16),
    ] {
        let run = |device: &Device| -> Result<[Tensor; 2]> {
            let weight = values.to_dtype(of_weight)?.to_device(device)?;
            let layer = FrozenLinear::new(weight, None)?;
            let xs = numbers(&[5, 64], 1).to_dtype(of_input)?.to_device(device)?;
            let xs = Var::from_tensor(&xs)?;
            let ys = layer.forward(&xs)?;
            let dxs = ys.backward()?.remove(&xs).expect("a gradient");
            assert_eq!((ys.dtype(), dxs.dtype()), (of_input, of_input));
            let wide = |tensor: &Tensor| on_host(tensor)?.to_dtype(DType::F64);
            Ok([wide(&ys.detach())?, wide(&dxs)?])
        };
        for (here, there) in run(&Device::Cpu)?.iter().zip(run(&device)?) {
            let off = difference(&there, here);
            let limit = rounding(of_input).max(rounding(of_weight));
            assert!(off < limit, "{of_weight:?} beside {of_input:?}: {off}");
        }
    }
    let table = FrozenWeight::from(values.to_dtype(DType::F32)?.to_device(&device)?);
    let tokens = Tensor::new(&[8i64, 9, -1, 1 << 32], &device)?;
    let rows = on_host(&table.embedding(&tokens)?)?;
    let is_row =
        |at: usize| Result::Ok(rows.get(at)?.to_vec1::<f32>()?.iter().all(|x| !x.is_nan()));
    assert_eq!(
        [is_row(0)?, is_row(1)?, is_row(2)?, is_row(3)?],
        [true, false, false, false]
    );
    Ok(())
}
