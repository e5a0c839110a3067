//! Adapters beside plain operations of candle: values and gradients, what they keep frozen, and what is refused.

use candle_core::{DType, Device, Module, Result, Tensor, Var};
use candle_headroom_nn::lora::{self, Lora};
use candle_headroom_nn::scope::frozen;
use candle_headroom_nn::{Linear, VarBuilder, VarMap, embedding, linear, linear_no_bias, seeded};

use crate::check::difference;

/// In f32.
fn numbers(shape: &[usize], seed: u64) -> Tensor {
    let numbers = crate::check::numbers(shape, seed);
    numbers.to_dtype(DType::F32).expect("a cast")
}

const PREFIX: &str = "base_model.model.layer";

/// A layer of 5 inputs and 4 outputs with an adapter of rank 2, none of whose parameters is 0.
struct Layer {
    layer: Linear,
    adapter: lora::Adapter,
    weight: Tensor,
    bias: Option<Tensor>,
    a: Var,
    b: Var,
    magnitude: Option<Var>,
}

fn options(dora: bool, dropout: f64) -> Lora {
    Lora {
        rank: 2,
        alpha: 3.,
        dropout,
        dora,
        ..Lora::default()
    }
}

fn var(vars: &VarMap, name: &str) -> Option<Var> {
    let data = vars.data().lock().unwrap();
    data.get(&format!("{PREFIX}.{name}")).cloned()
}

fn layer(lora: &Lora, has_bias: bool, dtype: DType) -> Result<Layer> {
    let weight = numbers(&[4, 5], 1).to_dtype(dtype)?;
    let bias = numbers(&[4], 2).to_dtype(dtype)?;
    let tensors = [("layer.weight", &weight), ("layer.bias", &bias)];
    let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor.clone()));
    let vb = VarBuilder::from_tensors(tensors.into(), dtype, &Device::Cpu).pp("layer");
    let vars = VarMap::new();
    let (layer, adapters) = lora.attach(&vars, || match has_bias {
        true => linear(5, 4, vb),
        false => linear_no_bias(5, 4, vb),
    })?;
    let [a, b] = ["lora_A.weight", "lora_B.weight"].map(|name| var(&vars, name).unwrap());
    let magnitude = var(&vars, "lora_magnitude_vector");
    for (seed, var) in [Some(&a), Some(&b), magnitude.as_ref()]
        .into_iter()
        .enumerate()
    {
        if let Some(var) = var {
            var.set(&(numbers(var.dims(), seed as u64 + 3).to_dtype(var.dtype())? + 0.5)?)?;
        }
    }
    Ok(Layer {
        layer,
        adapter: adapters["layer"].clone(),
        weight,
        bias: has_bias.then_some(bias),
        a,
        b,
        magnitude,
    })
}

impl Layer {
    /// As the papers write it, by candle's operations, with the whole matrix.
    fn plain(&self, x: &Tensor, scale: f64) -> Result<Tensor> {
        let inputs = x.dim(candle_core::D::Minus1)?;
        let rows = x.reshape(((), inputs))?;
        let moved = (&self.weight + (self.b.matmul(&self.a)? * scale)?)?;
        let moved = match &self.magnitude {
            None => moved,
            Some(magnitude) => {
                let norms = moved.detach().sqr()?.sum(1)?.sqrt()?;
                moved.broadcast_mul(&(magnitude.as_tensor() / norms)?.unsqueeze(1)?)?
            }
        };
        let y = rows.matmul(&moved.t()?)?;
        let y = match &self.bias {
            None => y,
            Some(bias) => y.broadcast_add(bias)?,
        };
        let mut dims = x.dims().to_vec();
        *dims.last_mut().unwrap() = 4;
        y.reshape(dims)
    }

    fn trained(&self) -> Vec<Var> {
        [Some(&self.a), Some(&self.b), self.magnitude.as_ref()]
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }
}

#[test]
fn values_and_gradients_are_those_of_the_whole_matrix() -> Result<()> {
    for (dora, has_bias) in [(false, false), (false, true), (true, false), (true, true)] {
        for shape in [&[3, 5][..], &[2, 3, 5]] {
            let lora = options(dora, 0.);
            let layer = layer(&lora, has_bias, DType::F64)?;
            let x = Var::from_tensor(&numbers(shape, 9).to_dtype(DType::F64)?)?;
            let [ours, plain] = [layer.layer.forward(&x)?, layer.plain(&x, lora.scale())?];
            assert!(difference(&ours, &plain) < 1e-12);
            let outer = numbers(ours.dims(), 10).to_dtype(DType::F64)?;
            let gradients = [ours, plain].map(|y| (y * &outer)?.sum_all()?.backward());
            let [ours, plain] = gradients;
            let (ours, plain) = (ours?, plain?);
            for var in layer.trained().iter().chain([&x]) {
                let [ours, plain] = [&ours, &plain].map(|store| store.get(var).unwrap());
                assert!(difference(ours, plain) < 1e-12, "{dora} {has_bias}");
            }
            assert!(ours.get(&layer.weight).is_none());
            let merged = layer.adapter.merge(&layer.weight)?;
            let merged = Linear::new(merged, layer.bias.clone()).forward(&x)?;
            assert!(difference(&merged, &layer.plain(&x, lora.scale())?) < 1e-12);
        }
    }
    Ok(())
}

#[test]
fn a_base_of_half_types_has_adapters_of_f32() -> Result<()> {
    for dora in [false, true] {
        let lora = options(dora, 0.);
        let [half, full] = [DType::BF16, DType::F32].map(|dtype| layer(&lora, true, dtype));
        let (half, full) = (half?, full?);
        assert!(half.trained().iter().all(|var| var.dtype() == DType::F32));
        let x = numbers(&[3, 5], 9);
        let y = half.layer.forward(&x.to_dtype(DType::BF16)?)?;
        assert_eq!(y.dtype(), DType::BF16);
        let expected = full.layer.forward(&x)?;
        // bf16 has 8 bits, and the sum has several rounded parts.
        let [y, expected] = [y, expected].map(|numbers| numbers.to_dtype(DType::F64));
        let difference = difference(&y?, &expected?);
        assert!(difference < 0.03, "{difference}");
    }
    Ok(())
}

/// With DoRA the base sees the dropped input too, but for what it computes alone, as in PEFT.
#[test]
fn dropout_acts_on_the_adapter_alone() -> Result<()> {
    let x = numbers(&[3, 5], 9).to_dtype(DType::F64)?;
    for dora in [false, true] {
        let lora = options(dora, 0.5);
        let layer = layer(&lora, true, DType::F64)?;
        let still = layer.plain(&x, lora.scale())?;
        let run = |seed| seeded(seed, || layer.layer.forward(&x));
        assert_eq!(difference(&run(1)?, &run(1)?), 0.);
        assert!(difference(&run(1)?, &run(2)?) > 0.01);
        assert!(difference(&frozen(|| run(1))?, &still) < 1e-12);
        assert!(difference(&layer.layer.without_graph().forward(&x)?, &still) < 1e-12);
        let dropped = seeded(1, || candle_headroom_nn::ops::dropout(&x, 0.5))?;
        let of_adapter = (layer.plain(&dropped, lora.scale())?
            - &layer.bias.clone().unwrap().broadcast_as((3, 4))?)?;
        let base = Linear::new(layer.weight.clone(), layer.bias.clone()).forward(&x)?;
        let of_dropped = Linear::new(layer.weight.clone(), None).forward(&dropped)?;
        let expected = ((base + of_adapter)? - of_dropped)?;
        assert!(difference(&run(1)?, &expected) < 1e-12);
    }
    Ok(())
}

#[test]
fn the_base_is_frozen_also_where_it_is_made_of_vars() -> Result<()> {
    let (base, adapters) = (VarMap::new(), VarMap::new());
    let vb = VarBuilder::from_varmap(&base, DType::F32, &Device::Cpu);
    let lora = Lora {
        targets: vec!["up".to_owned()],
        ..options(false, 0.)
    };
    let ((up, down), made) = lora.attach(&adapters, || {
        Ok((
            linear(5, 4, vb.pp("mlp.up"))?,
            linear(4, 5, vb.pp("mlp.down"))?,
        ))
    })?;
    assert_eq!(made.into_keys().collect::<Vec<_>>(), ["mlp.up"]);
    let loss = down
        .forward(&up.forward(&numbers(&[3, 5], 1))?)?
        .sum_all()?;
    let gradients = loss.backward()?;
    let vars = base.data().lock().unwrap().clone();
    for (name, var) in vars {
        let is_trained = name.starts_with("mlp.down");
        assert_eq!(gradients.get(&var).is_some(), is_trained, "{name}");
    }
    // The layer that was made afterwards has none.
    let later = linear(5, 4, vb.pp("mlp.up"))?;
    assert!(later.forward(&numbers(&[3, 5], 1))?.track_op());
    assert_eq!(adapters.all_vars().len(), 2);
    Ok(())
}

#[test]
fn targets_that_name_nothing_and_numbers_out_of_range_are_refused() -> Result<()> {
    let vb = || VarBuilder::zeros(DType::F32, &Device::Cpu);
    let build = || {
        embedding(9, 5, vb().pp("embed_tokens"))?;
        linear(5, 4, vb().pp("layers.0.q_proj"))?;
        linear(5, 4, vb().pp("lm_head"))
    };
    for (targets, expected) in [
        (
            &["q_proj", "nonsense"][..],
            Some("`nonsense`; there are q_proj, lm_head and all-linear"),
        ),
        (
            &["embed_tokens"],
            Some("convolutions and embeddings have no adapters"),
        ),
        (&["proj"], Some("`proj`")),
        (&["1.q_proj"], Some("`1.q_proj`")),
        (&["model.layers.0.q_proj"], Some("`model.layers.0.q_proj`")),
        (&[], Some("no target")),
        (&["layers.*.q_proj"], None),
        (&["*"], None),
        (&["all-linear"], None),
    ] {
        let lora = Lora {
            targets: targets.iter().map(|&target| target.to_owned()).collect(),
            ..Lora::default()
        };
        let attached = lora.attach(&VarMap::new(), build);
        match (attached, expected) {
            (Ok((_, made)), None) => assert_eq!(made.contains_key("lm_head"), targets == ["*"]),
            (Err(error), Some(expected)) => {
                let error = error.to_string();
                assert!(error.contains(expected), "{error}");
            }
            (attached, _) => panic!("{targets:?}: {:?}", attached.is_ok()),
        }
    }
    for (lora, expected) in [
        (
            Lora {
                rank: 0,
                ..Lora::default()
            },
            "must be 1 to 65536, got 0",
        ),
        (
            Lora {
                alpha: f64::NAN,
                ..Lora::default()
            },
            "must be positive, got NaN",
        ),
        (
            Lora {
                dropout: 1.,
                ..Lora::default()
            },
            "must be in [0, 1), got 1",
        ),
    ] {
        let error = lora.attach(&VarMap::new(), || -> Result<()> {
            panic!("it is not built")
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    Ok(())
}

/// An adapter of another shape under the name, and a build that fails or panics: the thread is as before.
#[test]
fn nothing_is_left_on_the_thread() -> Result<()> {
    let vb = || VarBuilder::zeros(DType::F32, &Device::Cpu).pp("layer");
    let vars = VarMap::new();
    let lora = options(true, 0.);
    lora.attach(&vars, || linear(5, 4, vb()))?;
    assert!(lora.attach(&vars, || linear(6, 4, vb())).is_err());
    let panicked = std::panic::catch_unwind(|| {
        lora.attach(&VarMap::new(), || -> Result<()> { panic!("by the test") })
    });
    assert!(panicked.is_err());
    let before = vars.all_vars().len();
    linear(5, 4, vb())?;
    assert_eq!(vars.all_vars().len(), before);
    // The scope within another one is its own.
    let (inner, outer) = (VarMap::new(), VarMap::new());
    let (_, made) = lora.attach(&outer, || {
        lora.attach(&inner, || linear(5, 4, vb()))?;
        linear(5, 4, vb().pp("outer"))
    })?;
    assert_eq!(made.into_keys().collect::<Vec<_>>(), ["layer.outer"]);
    assert_eq!(inner.all_vars().len(), 3);
    Ok(())
}

/// With DoRA the layer's bias is not scaled: its gradient is the sum of those of the rows, also where it is large beside the products.
#[test]
fn a_bias_beside_dora_is_added_as_it_is() -> Result<()> {
    for (dropout, dtype) in [(0., DType::F64), (0.5, DType::F64), (0., DType::BF16)] {
        let lora = Lora {
            dora: true,
            dropout,
            ..Lora::default()
        };
        let weight = numbers(&[4, 5], 1).to_dtype(dtype)?;
        let shape = (4, 5);
        let (adapter, _) = lora.attach(&VarMap::new(), || {
            lora::at("layer", shape, dtype, &Device::Cpu, || Ok(weight.clone()))
        })?;
        let adapter = adapter.expect("all layers have one");
        let bias = Var::from_tensor(&(numbers(&[4], 2) + 100.)?.to_dtype(dtype)?)?;
        let x = numbers(&[3, 5], 3).to_dtype(dtype)?;
        let y = adapter.forward(&x, Some(&bias), |x, bias| {
            assert!(bias.is_none(), "products are scaled without it");
            Linear::new(weight.clone(), None).forward(x)
        })?;
        let factors = numbers(&[3, 4], 4).to_dtype(dtype)?;
        let gradients = (y * &factors)?.sum_all()?.backward()?;
        let found = gradients.get(&bias).expect("a gradient");
        let expected = factors.to_dtype(DType::F64)?.sum(0)?;
        assert!(difference(&found.to_dtype(DType::F64)?, &expected) < 1e-2);
    }
    Ok(())
}

/// 32 MiB of rows are cast at a time: here those of two parts, against each of the two alone.
#[test]
fn many_rows_of_16_bits_are_cast_in_parts() -> Result<()> {
    const WIDTH: usize = 8192;
    let lora = Lora {
        rank: 2,
        ..Lora::default()
    };
    let (vars, dtype) = (VarMap::new(), DType::BF16);
    let weight = numbers(&[3, WIDTH], 1).to_dtype(dtype)?;
    let (adapter, _) = lora.attach(&vars, || {
        lora::at("layer", (3, WIDTH), dtype, &Device::Cpu, || {
            Ok(weight.clone())
        })
    })?;
    let adapter = adapter.expect("all layers have one");
    for var in vars.all_vars() {
        var.set(&numbers(var.dims(), 2))?;
    }
    let x = Var::from_tensor(&numbers(&[1100, WIDTH], 3).to_dtype(dtype)?)?;
    let factors = numbers(&[1100, 3], 4).to_dtype(dtype)?;
    let run = |first: usize, len: usize| -> Result<(Tensor, Vec<Tensor>)> {
        let y = adapter.forward(&x.narrow(0, first, len)?, None, |x, _| {
            Linear::new(weight.clone(), None).forward(x)
        })?;
        let loss = (&y * factors.narrow(0, first, len)?)?.sum_all()?;
        let gradients = loss.backward()?;
        let of = |var: &Var| gradients.get(var).expect("a gradient").to_dtype(DType::F64);
        let adapted = vars.all_vars();
        let found = adapted.iter().chain([&x]).map(of);
        Ok((
            y.detach().to_dtype(DType::F64)?,
            found.collect::<Result<_>>()?,
        ))
    };
    let ((y, whole), (first, of_first), (last, of_last)) =
        (run(0, 1100)?, run(0, 600)?, run(600, 500)?);
    assert!(difference(&y, &Tensor::cat(&[first, last], 0)?) < 1e-2);
    for (whole, parts) in whole.iter().zip(of_first.iter().zip(&of_last)) {
        assert!(difference(whole, &(parts.0 + parts.1)?) < 1e-2);
    }
    Ok(())
}
