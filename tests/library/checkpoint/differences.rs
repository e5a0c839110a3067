use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::error::CheckpointError;
use candle_headroom::optim::{Parameter, StateDict};
use candle_headroom::train::Resumable;
use candle_headroom::{AdamW, AdaptiveTrainer, Error, Result};

use super::*;

/// A trainer of these zeros.
fn zeros(parameters: &[(&str, &[usize], DType)]) -> AdaptiveTrainer<AdamW> {
    let vars = parameters
        .iter()
        .map(|(name, shape, dtype)| (*name, Var::zeros(*shape, *dtype, &Device::Cpu).unwrap()));
    let optimizer = AdamW::builder(Vec::from_iter(vars)).build().unwrap();
    AdaptiveTrainer::builder(optimizer).build().unwrap()
}

#[test]
fn a_changed_model_is_refused_with_every_difference() {
    let (_temporary, folder) = folder();
    train(&folder, 2, 1);
    let mut trainer = zeros(&[
        ("layer.weight", &[2, 3], DType::F32),
        ("layer.bias", &[2], DType::BF16),
        ("head.weight", &[4], DType::F32),
        ("head.bias", &[4], DType::F32),
    ]);
    let mut checkpoints = Checkpoints::builder(&folder).open().unwrap();
    let error = checkpoints.resume_trainer(&mut trainer).unwrap_err();
    let text = error.to_string();
    let Error::Checkpoint(error) = error else {
        panic!("{text}")
    };
    let CheckpointError::Differs {
        missing,
        unexpected,
        unfit,
        ..
    } = *error
    else {
        panic!("{text}")
    };
    assert_eq!(missing, ["head.weight", "head.bias"]);
    assert!(unexpected.is_empty());
    assert_eq!(
        unfit,
        [
            "layer.weight: F32 [3, 2] there, F32 [2, 3] here",
            "layer.bias: F32 [2] there, BF16 [2] here"
        ]
    );
    assert!(
        missing
            .iter()
            .chain(&unfit)
            .all(|name| text.contains(name.as_str())),
        "{text}"
    );

    let mut trainer = zeros(&[("layer.bias", &[2], DType::F32)]);
    let error = checkpoints.resume_trainer(&mut trainer).unwrap_err();
    assert!(
        error.to_string().contains("unexpected: layer.weight"),
        "{error}"
    );
    assert_eq!(trainer.updates(), 0);
    for parameter in trainer.model() {
        assert!(
            crate::support::flat(&parameter.var)
                .iter()
                .all(|value| *value == 0.)
        );
    }
}

/// A trainer whose state cannot be loaded, after the model was set.
struct Refusing(Vec<Parameter>);

impl Resumable for Refusing {
    fn model(&self) -> Vec<Parameter> {
        self.0.clone()
    }

    fn state(&self) -> Result<StateDict> {
        Ok(StateDict::default())
    }

    fn progress(&self) -> Result<std::collections::BTreeMap<String, String>> {
        Ok(Default::default())
    }

    fn load_state(&mut self, _: &StateDict) -> Result<()> {
        // It sees the saved parameters.
        assert_eq!(crate::support::flat(&self.0[0].var), [1., 2., 3.]);
        Err(candle_core::Error::msg("no").into())
    }

    fn updates(&self) -> u64 {
        0
    }
}

#[test]
fn parameters_come_back_if_the_state_cannot_be_loaded() {
    let (_temporary, folder) = folder();
    let var = Var::new(&[1f32, 2., 3.], &Device::Cpu).unwrap();
    let mut trainer = Refusing(vec![Parameter::new("w", var.clone())]);
    let mut checkpoints = Checkpoints::builder(&folder).open().unwrap();
    checkpoints.save_now(&trainer).unwrap();
    let now = Tensor::new(&[4f32, 5., 6.], &Device::Cpu).unwrap();
    var.set(&now).unwrap();
    checkpoints.resume_trainer(&mut trainer).unwrap_err();
    assert_eq!(var.to_vec1::<f32>().unwrap(), [4., 5., 6.]);
}

#[test]
fn two_parameters_of_one_name_are_refused() {
    let (_temporary, folder) = folder();
    let parameter = || Parameter::new("w", Var::zeros(2, DType::F32, &Device::Cpu).unwrap());
    let trainer = Refusing(vec![parameter(), parameter()]);
    let mut checkpoints = Checkpoints::builder(&folder).open().unwrap();
    let error = checkpoints.save_now(&trainer).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("two parameters have the name `w`"),
        "{error}"
    );
    assert!(error.is_checkpoint());
    assert!(names(&folder).is_empty());
}
