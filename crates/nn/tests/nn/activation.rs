use candle_core::{DType, Device, Module, Result, Tensor};
use candle_headroom_nn::{self as nn, Activation, PReLU, ops};

use crate::check::{agrees, agrees_with_differences, numbers, same_bits};

/// Each of ours with candle's of the same name.
fn all() -> Vec<(Activation, candle_nn::Activation)> {
    use candle_nn::Activation as Theirs;
    let pairs = vec![
        (Activation::Gelu, Theirs::Gelu),
        (Activation::NewGelu, Theirs::NewGelu),
        (Activation::Relu, Theirs::Relu),
        (Activation::Relu2, Theirs::Relu2),
        (Activation::Relu6, Theirs::Relu6),
        (Activation::Silu, Theirs::Silu),
        (Activation::Sigmoid, Theirs::Sigmoid),
        (Activation::HardSigmoid, Theirs::HardSigmoid),
        (Activation::Swiglu, Theirs::Swiglu),
        (Activation::Swish, Theirs::Swish),
        (Activation::Mish, Theirs::Mish),
        (Activation::HardSwish, Theirs::HardSwish),
        (Activation::Elu(0.7), Theirs::Elu(0.7)),
        (Activation::LeakyRelu(0.1), Theirs::LeakyRelu(0.1)),
        (Activation::GeluPytorchTanh, Theirs::GeluPytorchTanh),
    ];
    for (ours, _) in &pairs {
        // A new variant must be added here.
        match ours {
            Activation::Gelu | Activation::NewGelu | Activation::Relu | Activation::Relu2 => {}
            Activation::Relu6 | Activation::Silu | Activation::Sigmoid => {}
            Activation::HardSigmoid | Activation::Swiglu | Activation::Swish => {}
            Activation::Mish | Activation::HardSwish | Activation::Elu(_) => {}
            Activation::LeakyRelu(_) | Activation::GeluPytorchTanh => {}
        }
    }
    pairs
}

#[test]
fn candles_become_these() {
    for (ours, theirs) in all() {
        assert_eq!(Activation::from(theirs), ours);
    }
}

/// Numbers on both sides of every kink.
fn wide(shape: &[usize]) -> Result<Tensor> {
    numbers(shape, 5) * 4.
}

/// The function by plain operations. candle's derivatives of its `gelu` and `gelu_erf` are good to 6 digits only.
fn plain(theirs: candle_nn::Activation, x: &Tensor) -> Result<Tensor> {
    use candle_nn::Activation::{Gelu, GeluPytorchTanh, NewGelu};
    let inner = match theirs {
        Gelu => (x * 0.5f64.sqrt())?.erf()?,
        NewGelu | GeluPytorchTanh => {
            let cubic = (x + (x.sqr()? * x)? * 0.044715)?;
            (cubic * (2. / std::f64::consts::PI).sqrt())?.tanh()?
        }
        _ => return theirs.forward(x),
    };
    x * ((inner + 1.)? * 0.5)?
}

#[test]
fn agree_with_plain_operations() -> Result<()> {
    for (ours, theirs) in all() {
        let inputs = [wide(&[3, 50])?];
        agrees(&|x| ours.forward(&x[0]), &|x| plain(theirs, &x[0]), &inputs)?;
    }
    Ok(())
}

#[test]
fn gradients_are_the_differences() -> Result<()> {
    for (ours, _) in all() {
        agrees_with_differences(&|x| ours.forward(&x[0]), &[wide(&[4, 12])?])?;
    }
    let selu = |x: &[Tensor]| ops::selu(&x[0], 1.6732632, 1.0507009);
    agrees_with_differences(&selu, &[wide(&[5, 5])?])
}

#[test]
fn kinks_have_candles_derivative() -> Result<()> {
    let kinks = Tensor::new(&[[0f64, 3., -3., 6., -0., 1.]], &Device::Cpu)?;
    for (ours, theirs) in all() {
        // candle's derivatives of these two are good to 6 digits only.
        if !matches!(
            ours,
            Activation::Gelu | Activation::NewGelu | Activation::GeluPytorchTanh
        ) {
            agrees(
                &|x| ours.forward(&x[0]),
                &|x| theirs.forward(&x[0]),
                std::slice::from_ref(&kinks),
            )?;
        }
    }
    Ok(())
}

#[test]
fn far_out_values_and_gradients_are_the_limits() -> Result<()> {
    use Activation::{Elu, HardSigmoid, LeakyRelu, Relu6, Sigmoid};
    let far = [3e38, 1e18, 1e12, 1e4, 90.];
    let far = far.into_iter().flat_map(|x: f64| [x, -x]);
    let far = Tensor::from_iter(far.collect::<Vec<_>>(), &Device::Cpu)?;
    for ((ours, _), dtype) in all().into_iter().zip([DType::F32, DType::F64].repeat(20)) {
        // Their values overflow.
        if matches!(ours, Activation::Relu2 | Activation::Swiglu) {
            continue;
        }
        // Far above and far below zero.
        let slopes = match ours {
            Sigmoid | HardSigmoid | Relu6 => [0., 0.],
            LeakyRelu(slope) => [1., slope],
            _ => [1., 0.],
        };
        let xs = candle_core::Var::from_tensor(&far.to_dtype(dtype)?)?;
        let ys = ours.forward(&xs)?;
        let gradients = ys.sum_all()?.backward()?;
        let gradient = gradients.get(&xs).expect("a gradient");
        let values = |tensor: &Tensor| tensor.to_dtype(DType::F64)?.to_vec1::<f64>();
        for ((x, y), slope) in values(&xs)?
            .into_iter()
            .zip(values(&ys)?)
            .zip(values(gradient)?)
        {
            let [above, below] = slopes;
            let limit = if x > 0. { above } else { below };
            // The slope of `LeakyRelu` is rounded to f32; e^-90 is below 1e-39.
            assert!((slope - limit).abs() < 1e-8, "{ours:?}: {slope} at {x}");
            let value = match ours {
                Sigmoid | HardSigmoid if x > 0. => 1.,
                Relu6 if x > 0. => 6.,
                Elu(alpha) if x < 0. => -alpha,
                _ => limit * x,
            };
            // candle's own forward pass cubes its input.
            if matches!(ours, Activation::NewGelu | Activation::GeluPytorchTanh) && x.abs() > 1e9 {
                continue;
            }
            let off = (y - value).abs() / value.abs().max(1.);
            assert!(off < 1e-6, "{ours:?}: {y} at {x}");
        }
    }
    Ok(())
}

#[test]
fn forward_equals_candles_bit_by_bit() -> Result<()> {
    use Activation::{Elu, Gelu, NewGelu, Relu, Sigmoid, Silu};
    for (ours, theirs) in all() {
        if matches!(ours, Gelu | NewGelu | Relu | Silu | Sigmoid | Elu(_)) {
            for dtype in [DType::F32, DType::F64] {
                let xs = wide(&[50, 37])?.to_dtype(dtype)?;
                same_bits(&ours.forward(&xs)?, &theirs.forward(&xs)?)?;
                same_bits(&ours.forward(&xs.t()?)?, &theirs.forward(&xs.t()?)?)?;
            }
        }
    }
    Ok(())
}

#[test]
fn serde_reads_and_writes_candles_names() {
    for (ours, theirs) in all() {
        let text = serde_json::to_string(&theirs).expect("candle's name");
        assert_eq!(serde_json::to_string(&ours).expect("a name"), text);
        assert_eq!(
            serde_json::from_str::<Activation>(&text).expect("the same"),
            ours
        );
    }
    for (text, expected) in [
        ("\"gelu_new\"", Activation::NewGelu),
        ("\"gelu_pytorch_tanh\"", Activation::GeluPytorchTanh),
        ("\"gelu\"", Activation::Gelu),
    ] {
        assert_eq!(
            serde_json::from_str::<Activation>(text).expect("an alias"),
            expected
        );
    }
    assert_eq!(Activation::default(), Activation::Gelu);
    let of_module: nn::activation::Activation = Activation::Silu;
    assert_eq!(of_module, Activation::Silu);
}

#[test]
fn swiglu_takes_halves() -> Result<()> {
    for shape in [&[2][..], &[3, 10], &[2, 3, 66], &[70, 514]] {
        agrees(
            &|x| ops::swiglu(&x[0]),
            &|x| candle_nn::ops::swiglu(&x[0]),
            &[numbers(shape, 1)],
        )?;
    }
    assert!(ops::swiglu(&numbers(&[3, 5], 1)).is_err());
    assert!(ops::swiglu(&Tensor::new(1f32, &Device::Cpu)?).is_err());
    let empty = Tensor::zeros((3, 0), DType::F32, &Device::Cpu)?;
    assert_eq!(ops::swiglu(&empty)?.dims(), [3, 0]);
    Ok(())
}

#[test]
fn functions_of_the_module_agree() -> Result<()> {
    let inputs = [wide(&[3, 9])?];
    agrees(
        &|x| ops::silu(&x[0]),
        &|x| candle_nn::ops::silu(&x[0]),
        &inputs,
    )?;
    agrees(
        &|x| ops::mish(&x[0]),
        &|x| candle_nn::ops::mish(&x[0]),
        &inputs,
    )?;
    agrees(
        &|x| ops::leaky_relu(&x[0], 0.3),
        &|x| candle_nn::ops::leaky_relu(&x[0], 0.3),
        &inputs,
    )?;
    for integers in [DType::U8, DType::U32, DType::I64] {
        assert!(ops::silu(&Tensor::zeros(3, integers, &Device::Cpu)?).is_err());
    }
    Ok(())
}

#[test]
fn prelu_agrees_with_candles() -> Result<()> {
    for (slopes, is_scalar, shape) in [
        (1, true, &[2, 3, 4][..]),
        (3, false, &[2, 3, 4]),
        (5, false, &[5]),
        (4, false, &[6, 4]),
    ] {
        // The slopes are a vector; the last dimensions of tests are laid out in several ways.
        agrees(
            &|x| PReLU::new(x[1].clone(), is_scalar).forward(&x[0]),
            &|x| candle_nn::PReLU::new(x[1].clone(), is_scalar).forward(&x[0]),
            &[wide(shape)?, numbers(&[slopes], 3)],
        )?;
    }
    let wrong = PReLU::new(numbers(&[3], 1), false).forward(&numbers(&[2, 4], 1));
    assert!(wrong.is_err_and(|error| error.to_string().contains("4 channels, there are 3 slopes")));
    Ok(())
}
