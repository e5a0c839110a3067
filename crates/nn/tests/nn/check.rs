//! Compares an operation with others that compute the same.
#![allow(dead_code)] // each test binary uses its own part

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_headroom_nn::quantized::{FrozenWeight, Nf4};

pub const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

/// An operation on several tensors.
pub type Operation<'a> = &'a dyn Fn(&[Tensor]) -> Result<Tensor>;

/// The same numbers in every run, between -2 and 2, as f64.
pub fn numbers(shape: &[usize], seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let count: usize = shape.iter().product();
    let values = (0..count).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64 * 4. - 2.
    });
    Tensor::from_iter(values.collect::<Vec<_>>(), &Device::Cpu)
        .and_then(|values| values.reshape(shape))
        .expect("numbers")
}

/// The formats that are trained on, of weights whose rows have multiples of 256 elements.
pub fn frozen(values: &Tensor, device: &Device) -> Result<Vec<(&'static str, FrozenWeight)>> {
    let values = values.to_dtype(DType::F32)?;
    let ggml = |dtype| QTensor::quantize_onto(&values, dtype, device).map(FrozenWeight::from);
    Ok(vec![
        ("Q4_0", ggml(GgmlDType::Q4_0)?),
        ("Q4_K", ggml(GgmlDType::Q4K)?),
        ("Q5_K", ggml(GgmlDType::Q5K)?),
        ("Q6_K", ggml(GgmlDType::Q6K)?),
        ("Q8_0", ggml(GgmlDType::Q8_0)?),
        ("NF4", Nf4::quantize(&values, device)?.into()),
    ])
}

/// The factors of a weighted sum of an output. All types hold these numbers, so that references get the same gradient.
pub fn factors(shape: &[usize]) -> Tensor {
    let rounded = numbers(shape, 77).to_dtype(DType::BF16);
    rounded
        .and_then(|rounded| rounded.to_dtype(DType::F64))
        .expect("factors")
}

/// How the tensors that an operation is given lie in memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Strides {
    Contiguous,
    /// The last two dimensions lie in memory the other way around.
    Transposed,
    /// The last dimension is a part of a wider one.
    Narrowed,
}

pub const STRIDES: [Strides; 3] = [Strides::Contiguous, Strides::Transposed, Strides::Narrowed];

impl Strides {
    /// A Var with these values, and the tensor that is made from it.
    fn lay_out(self, values: &Tensor) -> Result<(Var, Tensor)> {
        let is_matrix = values.rank() >= 2;
        match self {
            Self::Transposed if is_matrix => {
                let var = Var::from_tensor(&values.transpose(D::Minus1, D::Minus2)?.contiguous()?)?;
                let tensor = var.transpose(D::Minus1, D::Minus2)?;
                Ok((var, tensor))
            }
            Self::Narrowed if is_matrix => {
                let var = Var::from_tensor(&Tensor::cat(&[values, values], D::Minus1)?)?;
                let tensor =
                    var.narrow(D::Minus1, values.dim(D::Minus1)?, values.dim(D::Minus1)?)?;
                Ok((var, tensor))
            }
            _ => {
                let var = Var::from_tensor(&values.contiguous()?)?;
                let tensor = var.as_tensor().clone();
                Ok((var, tensor))
            }
        }
    }
}

/// The output, and the gradients of a weighted sum of it with respect to the inputs, all as f64.
pub fn differentiate(
    operation: Operation,
    inputs: &[Tensor],
    strides: Strides,
) -> Result<(Tensor, Vec<Tensor>)> {
    let laid = inputs.iter().map(|values| strides.lay_out(values));
    let (vars, tensors): (Vec<_>, Vec<_>) = laid.collect::<Result<Vec<_>>>()?.into_iter().unzip();
    let output = operation(&tensors)?;
    let weights = factors(output.dims()).to_dtype(output.dtype())?;
    let weights = weights.to_device(output.device())?;
    let store = (&output * weights)?.sum_all()?.backward()?;
    let gradients = vars.iter().map(|var| {
        let gradient = store
            .get(var)
            .unwrap_or_else(|| panic!("a gradient for {var:?}"));
        gradient.to_dtype(DType::F64)
    });
    Ok((
        output.to_dtype(DType::F64)?,
        gradients.collect::<Result<_>>()?,
    ))
}

/// The largest difference, in proportion to the largest value.
pub fn difference(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.dims(), b.dims());
    let largest = |t: &Tensor| -> Result<f64> { t.abs()?.flatten_all()?.max(0)?.to_scalar() };
    let (Ok(difference), Ok(scale)) = ((a - b).and_then(|d| largest(&d)), largest(b)) else {
        panic!("cannot compare {a:?} with {b:?}");
    };
    assert!(difference.is_finite(), "{a} differs from {b}");
    difference / scale.max(1e-30)
}

/// Rounding errors of some operations in f32 whose result is rounded to a type, in proportion to the largest value. Sums in f16 or bf16
/// are further off.
pub fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 2e-6,
        DType::F16 => 2e-3,
        DType::BF16 => 1e-2,
        other => panic!("{other:?} is not rounded"),
    }
}

/// Asserts that an operation and its gradients agree with those of plain operations in f64, for each type and layout.
pub fn agrees(operation: Operation, plain: Operation, inputs: &[Tensor]) -> Result<()> {
    agrees_within(&rounding, operation, plain, inputs)
}

/// As [`agrees`], for attention, whose gradients are differences of sums over the kept output, which is rounded.
pub fn agrees_from_output(operation: Operation, plain: Operation, inputs: &[Tensor]) -> Result<()> {
    agrees_within(&|dtype| 3. * rounding(dtype), operation, plain, inputs)
}

/// As [`agrees_on`], for attention, which on CUDA computes with candle's operations: each rounds its result, also
/// probabilities and the parts of sums over chunks.
pub fn agrees_on_rounding_each(
    device: &Device,
    operation: Operation,
    inputs: &[Tensor],
) -> Result<()> {
    agrees_on_within(&|dtype| 10. * rounding(dtype), device, operation, inputs)
}

/// As [`agrees`], with limits of its own.
pub fn agrees_within(
    limit: &dyn Fn(DType) -> f64,
    operation: Operation,
    plain: Operation,
    inputs: &[Tensor],
) -> Result<()> {
    for dtype in FLOATS {
        let typed = inputs.iter().map(|input| match input.dtype().is_float() {
            true => input.to_dtype(dtype),
            false => Ok(input.clone()),
        });
        let typed = typed.collect::<Result<Vec<_>>>()?;
        // The reference gets the same rounded inputs.
        let exact = typed.iter().map(|input| input.to_dtype(DType::F64));
        let exact = exact.collect::<Result<Vec<_>>>()?;
        for strides in STRIDES {
            let (output, gradients) = differentiate(operation, &typed, strides)?;
            let (expected, plain) = differentiate(plain, &exact, strides)?;
            let limit = limit(dtype);
            let off = difference(&output, &expected);
            assert!(
                off <= limit,
                "{dtype:?}, {strides:?}: output is {off:e} off"
            );
            for (index, (found, plain)) in gradients.iter().zip(&plain).enumerate() {
                let off = difference(found, plain);
                assert!(
                    off <= limit,
                    "{dtype:?}, {strides:?}: gradient {index} is {off:e} off"
                );
            }
        }
    }
    Ok(())
}

/// Asserts that the gradients of an operation are its differences for small steps, in f64.
pub fn agrees_with_differences(operation: Operation, inputs: &[Tensor]) -> Result<()> {
    const STEP: f64 = 1e-6;
    let (output, gradients) = differentiate(operation, inputs, Strides::Contiguous)?;
    let weights = factors(output.dims());
    let loss = |inputs: &[Tensor]| -> Result<f64> {
        (operation(inputs)?.to_dtype(DType::F64)? * &weights)?
            .sum_all()?
            .to_scalar()
    };
    for (index, (input, gradient)) in inputs.iter().zip(&gradients).enumerate() {
        let values: Vec<f64> = input.flatten_all()?.to_vec1()?;
        let moved = |at: usize, by: f64| -> Result<f64> {
            let mut values = values.clone();
            values[at] += by;
            let mut inputs = inputs.to_vec();
            inputs[index] = Tensor::from_vec(values, input.shape(), input.device())?;
            loss(&inputs)
        };
        let slopes =
            (0..values.len()).map(|at| Ok((moved(at, STEP)? - moved(at, -STEP)?) / (2. * STEP)));
        let slopes = Tensor::from_vec(
            slopes.collect::<Result<Vec<_>>>()?,
            input.shape(),
            input.device(),
        )?;
        let off = difference(gradient, &slopes);
        // The step's square, and the rounding of the loss divided by the step.
        assert!(off < 1e-7, "gradient {index} is {off:e} off");
    }
    Ok(())
}

/// Asserts that two tensors hold the same bits.
pub fn same_bits(a: &Tensor, b: &Tensor) -> Result<()> {
    assert_eq!((a.dims(), a.dtype()), (b.dims(), b.dtype()));
    let bits = |t: &Tensor| -> Result<Vec<u64>> {
        let values: Vec<f64> = t.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
        Ok(values.into_iter().map(f64::to_bits).collect())
    };
    assert_eq!(bits(a)?, bits(b)?);
    Ok(())
}

/// Asserts that an operation and its gradients agree on a device with those on the CPU, for each type and layout.
pub fn agrees_on(device: &Device, operation: Operation, inputs: &[Tensor]) -> Result<()> {
    agrees_on_within(&rounding, device, operation, inputs)
}

fn agrees_on_within(
    limit: &dyn Fn(DType) -> f64,
    device: &Device,
    operation: Operation,
    inputs: &[Tensor],
) -> Result<()> {
    for dtype in FLOATS {
        let typed = inputs.iter().map(|input| match input.dtype().is_float() {
            true => input.to_dtype(dtype),
            false => Ok(input.clone()),
        });
        let typed = typed.collect::<Result<Vec<_>>>()?;
        let there = typed.iter().map(|input| input.to_device(device));
        let there = there.collect::<Result<Vec<_>>>()?;
        for strides in STRIDES {
            let (expected, plain) = differentiate(operation, &typed, strides)?;
            let (output, gradients) = differentiate(operation, &there, strides)?;
            let limit = limit(dtype);
            let off = difference(&output.to_device(&Device::Cpu)?, &expected);
            assert!(
                off <= limit,
                "{dtype:?}, {strides:?}: output is {off:e} off"
            );
            for (index, (found, plain)) in gradients.iter().zip(&plain).enumerate() {
                let off = difference(&found.to_device(&Device::Cpu)?, plain);
                assert!(
                    off <= limit,
                    "{dtype:?}, {strides:?}: gradient {index} is {off:e} off"
                );
            }
        }
    }
    Ok(())
}
