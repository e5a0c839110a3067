//! State that is saved, loaded, refused, and taken over from PyTorch.

mod files;
mod kills;
mod pytorch;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::support::{self, flat, snapshot, wave};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::optim::{
    Algorithm, Commit, Committed, Fused, Group, Lion, LossScale, ParamsAdamW, ParamsLion,
    ParamsSgd, StateDict,
};
use candle_headroom::{AdamW, Error, LearningRate, Sgd};

const SHAPES: [&[usize]; 4] = [&[3, 5], &[7], &[], &[2, 3, 4]];

/// Parameters with names, in an order of the caller's.
fn named(dtype: DType, order: &[usize]) -> Vec<(String, Var)> {
    let var = |&index: &usize| {
        let shape = SHAPES[index];
        let values = wave(shape.iter().product(), index, dtype).unwrap();
        let var = Var::from_tensor(&values.reshape(shape).unwrap()).unwrap();
        (format!("layer.{index}"), var)
    };
    order.iter().map(var).collect()
}

fn gradients(parameters: &[(String, Var)], step: usize) -> GradStore {
    let mut store = GradStore::default();
    for (name, var) in parameters {
        let phase = step * 11 + name.len() + name.bytes().last().unwrap() as usize;
        let gradient = wave(var.elem_count(), phase, var.dtype()).unwrap();
        store.insert(var, gradient.reshape(var.shape()).unwrap());
    }
    store
}

fn values(parameters: &[(String, Var)]) -> HashMap<String, Vec<f64>> {
    (parameters.iter())
        .map(|(name, var)| (name.clone(), flat(var)))
        .collect()
}

/// A file that is removed when the test ends.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        let name = format!("candle-headroom-{}-{name}.safetensors", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl AsRef<Path> for File {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

/// Ten steps in one go, and five, saved, loaded into another optimizer whose parameters stand in another order, and five more.
fn resumes<A: Algorithm>(params: A, dtype: DType) {
    let build = |parameters: &[(String, Var)], params: A| {
        let builder = Fused::builder(parameters.to_vec()).params(params);
        let builder = builder.loss_scale(LossScale::dynamic().interval(2));
        builder.master_weights().build().unwrap()
    };
    let whole = named(dtype, &[0, 1, 2, 3]);
    let mut optimizer = build(&whole, params.clone());
    for step in 0..10 {
        commit(&mut optimizer, &gradients(&whole, step)).unwrap();
    }

    let first = named(dtype, &[0, 1, 2, 3]);
    let mut saved = build(&first, params);
    for step in 0..5 {
        commit(&mut saved, &gradients(&first, step)).unwrap();
    }
    let file = File::new(&format!(
        "{}-{dtype:?}",
        std::any::type_name::<A>().replace(':', "")
    ));
    saved.state().unwrap().save(&file).unwrap();

    let second = named(dtype, &[2, 0, 3, 1]);
    for (name, var) in &second {
        let (_, from) = first.iter().find(|(other, _)| other == name).unwrap();
        var.set(from).unwrap();
    }
    // Other hyper-parameters, which the file's replace.
    let mut loaded = build(&second, A::default());
    loaded.load_state(&StateDict::load(&file).unwrap()).unwrap();
    assert_eq!(loaded.progress().unwrap().steps, 5);
    for step in 5..10 {
        commit(&mut loaded, &gradients(&second, step)).unwrap();
    }
    assert_eq!(values(&second), values(&whole), "bit by bit");
    let (loaded, optimizer) = (loaded.progress().unwrap(), optimizer.progress().unwrap());
    assert_eq!(loaded, optimizer);
    assert!(loaded.loss_scale > Some(65536.));
}

#[test]
fn a_run_goes_on_as_if_it_had_never_stopped() {
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        let lr = 0.01;
        resumes(
            ParamsAdamW {
                lr,
                ..Default::default()
            },
            dtype,
        );
        let momentum = ParamsSgd {
            lr,
            momentum: 0.9,
            dampening: 0.5,
            ..Default::default()
        };
        resumes_from(momentum, dtype);
        resumes(
            ParamsLion {
                lr,
                ..Default::default()
            },
            dtype,
        );
    }
}

/// Sgd's default keeps nothing, so the loading side has to have momentum too.
fn resumes_from(params: ParamsSgd, dtype: DType) {
    let (first, second) = (named(dtype, &[0, 1]), named(dtype, &[0, 1]));
    let mut saved = Sgd::builder(first.clone()).params(params).build().unwrap();
    saved.commit(&gradients(&first, 0)).unwrap();
    let dict = saved.state().unwrap();
    second
        .iter()
        .zip(&first)
        .for_each(|((_, to), (_, from))| to.set(from).unwrap());
    let mut loaded = Sgd::builder(second.clone())
        .params(ParamsSgd {
            momentum: 0.1,
            ..params
        })
        .build()
        .unwrap();
    loaded.load_state(&dict).unwrap();
    assert_eq!(*loaded.params(), params);
    saved.commit(&gradients(&first, 1)).unwrap();
    loaded.commit(&gradients(&second, 1)).unwrap();
    assert_eq!(values(&second), values(&first));
}

#[test]
fn groups_come_back_with_their_options() {
    let parameters = named(DType::F32, &[0, 1, 2, 3]);
    let build = |rate, decay: Option<f64>| {
        let (first, second): (Vec<_>, Vec<_>) = parameters
            .iter()
            .cloned()
            .partition(|(_, var)| var.rank() > 1);
        let mut second = Group::from(second).learning_rate_factor(rate);
        if let Some(decay) = decay {
            second = second.weight_decay(decay);
        }
        AdamW::builder(first).group(second).build().unwrap()
    };
    let mut saved = build(0.25, Some(0.5));
    let frozen = saved.groups()[0].frozen(true);
    saved.set_group(0, frozen).unwrap();
    let mut loaded = build(1., None);
    loaded.load_state(&saved.state().unwrap()).unwrap();
    assert_eq!(loaded.groups(), saved.groups());

    let mut one = AdamW::builder(parameters)
        .params(ParamsAdamW::default())
        .build()
        .unwrap();
    let error = one.load_state(&saved.state().unwrap()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("groups: 2 in the saved state, 1 here"),
        "{error}"
    );
}

#[test]
fn everything_that_does_not_fit_is_listed_and_nothing_changes() {
    let parameters = named(DType::F32, &[0, 1, 2]);
    let mut optimizer = AdamW::builder(parameters.clone())
        .params(ParamsAdamW::default())
        .build()
        .unwrap();
    optimizer.commit(&gradients(&parameters, 0)).unwrap();
    let before = optimizer.state().unwrap();
    let mut dict = before.clone();
    let device = &Device::Cpu;
    dict.tensors.remove("layer.0.exp_avg");
    dict.tensors.remove("layer.2.step");
    dict.tensors.insert(
        "other.exp_avg".into(),
        Tensor::zeros(3, DType::F32, device).unwrap(),
    );
    dict.tensors.insert(
        "layer.1.exp_avg".into(),
        Tensor::zeros(8, DType::F32, device).unwrap(),
    );
    dict.tensors.insert(
        "layer.1.exp_avg_sq".into(),
        Tensor::zeros(7, DType::U32, device).unwrap(),
    );
    dict.tensors
        .insert("layer.0.step".into(), Tensor::new(-1f32, device).unwrap());
    change(&mut dict, |saved| {
        saved["params"]["beta1"] = 1.5.into();
        saved["params"]["lr"] = (-1.).into();
        saved["steps"] = u64::MAX.into();
    });
    let Err(Error::State(error)) = optimizer.load_state(&dict) else {
        panic!("it was loaded")
    };
    assert_eq!(error.missing, ["layer.0.exp_avg", "layer.2.step"]);
    assert_eq!(error.unexpected, ["other.exp_avg"]);
    assert_eq!(error.unfit.len(), 6, "{error}");
    for word in [
        "[8], not [7]",
        "U32",
        "not a number of steps",
        "beta1 is 1.5, not at least 0 and below 1",
        "lr is -1, not finite and at least 0",
        "steps is 18446744073709551615",
    ] {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
    let after = optimizer.state().unwrap();
    assert_eq!(after.metadata, before.metadata);
    for (name, tensor) in &before.tensors {
        assert_eq!(flat(&after.tensors[name]), flat(tensor), "{name}");
    }

    let mut lion = Lion::builder(parameters)
        .params(ParamsLion::default())
        .build()
        .unwrap();
    let error = lion.load_state(&before).unwrap_err();
    assert!(
        error.to_string().contains("optimizer is AdamW, not Lion"),
        "{error}"
    );
}

#[test]
fn masters_and_small_moments_are_part_of_the_state() {
    let parameters = named(DType::BF16, &[0, 1]);
    let builder = AdamW::builder(parameters.clone());
    let mut optimizer = builder
        .master_weights()
        .moments(DType::BF16)
        .build()
        .unwrap();
    optimizer.commit(&gradients(&parameters, 0)).unwrap();
    let dict = optimizer.state().unwrap();
    assert_eq!(dict.tensors["layer.0.exp_avg"].dtype(), DType::BF16);
    assert_eq!(dict.tensors["layer.0.master"].dtype(), DType::F32);
    let rounded = dict.tensors["layer.0.master"]
        .to_dtype(DType::BF16)
        .unwrap();
    assert_eq!(flat(&rounded), flat(&parameters[0].1));
}

/// State that was saved without masters, as PyTorch's of bf16 parameters: they start from the parameters. Masters that an optimizer does
/// not keep are ignored.
#[test]
fn masters_that_are_missing_start_from_the_parameters() {
    let build = |parameters: &[(String, Var)], has_masters: bool| {
        let builder = AdamW::builder(parameters.to_vec());
        match has_masters {
            true => builder.master_weights().build().unwrap(),
            false => builder.build().unwrap(),
        }
    };
    let parameters = named(DType::BF16, &[0, 1, 2]);
    let mut without = build(&parameters, false);
    without.commit(&gradients(&parameters, 0)).unwrap();
    let mut state = without.state().unwrap();
    let mut with = build(&parameters, true);
    with.load_state(&state).unwrap();
    let loaded = with.state().unwrap();
    for (name, var) in &parameters {
        let master = &loaded.tensors[&format!("{name}.master")];
        assert_eq!(master.dtype(), DType::F32);
        assert_eq!(flat(master), flat(var), "{name}");
    }
    for (name, tensor) in &state.tensors {
        assert_eq!(flat(&loaded.tensors[name]), flat(tensor), "{name}");
    }
    // A step that bf16 alone would lose arrives at the masters.
    with.commit(&gradients(&parameters, 1)).unwrap();
    let masters = with.state().unwrap();
    let rounded = masters.tensors["layer.0.master"].to_dtype(DType::BF16);
    assert_eq!(flat(&rounded.unwrap()), flat(&parameters[0].1));
    without.load_state(&masters).unwrap();
    let kept = without.state().unwrap();
    assert!(!kept.tensors.contains_key("layer.0.master"));
    let first = "layer.0.exp_avg";
    assert_eq!(flat(&kept.tensors[first]), flat(&masters.tensors[first]));

    // One of another shape is refused all the same, and so is what else is missing.
    let scalar = Tensor::zeros(9, DType::F32, &Device::Cpu).unwrap();
    state.tensors.insert("layer.1.master".to_owned(), scalar);
    state.tensors.remove("layer.0.exp_avg_sq");
    let Err(Error::State(error)) = with.load_state(&state) else {
        panic!("it was loaded")
    };
    assert_eq!(error.missing, ["layer.0.exp_avg_sq"]);
    assert_eq!(error.unfit.len(), 1, "{error}");
}

#[test]
fn a_snapshot_is_a_copy() {
    let parameters = named(DType::F32, &[0]);
    let mut optimizer = Lion::builder(parameters.clone())
        .params(ParamsLion::default())
        .build()
        .unwrap();
    optimizer.commit(&gradients(&parameters, 0)).unwrap();
    let dict = optimizer.state().unwrap();
    let before = flat(&dict.tensors["layer.0.exp_avg"]);
    let vars: Vec<Var> = parameters.iter().map(|(_, var)| var.clone()).collect();
    let still = snapshot(&vars);
    optimizer.commit(&gradients(&parameters, 1)).unwrap();
    assert_eq!(flat(&dict.tensors["layer.0.exp_avg"]), before);
    assert_ne!(snapshot(&vars), still);
}

/// An update with gradients that did not come from a loss, also with a loss scale.
fn commit<A: Algorithm>(
    optimizer: &mut Fused<A>,
    gradients: &GradStore,
) -> Result<Committed, Error> {
    let device = optimizer.parameters()[0].var.device();
    optimizer.scale_loss(&Tensor::ones((), DType::F32, device)?)?;
    optimizer.commit(gradients)
}

/// Changes the document that a state dict holds besides tensors.
fn change(state: &mut StateDict, change: impl FnOnce(&mut serde_json::Value)) {
    let mut saved = serde_json::from_str(&state.metadata["optimizer"]).unwrap();
    change(&mut saved);
    state.metadata.insert("optimizer".into(), saved.to_string());
}
