//! The model of the program `finetune` beside what transformers and PEFT computed, from the files of both.
//!
//! A case is a folder: a model's `config.json` and `model.safetensors`, an `adapter` folder of PEFT, and `expected.safetensors`,
//! with `tokens` and `targets`, and for the model alone (`base.`) and with its adapter (`lora.`): `logits`, `loss`, and `grad.`
//! with the name of each trained parameter.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::nn::{VarBuilder, VarMap};

use headroom_finetune::model::{Base, Config, Decoder, Quantization, load_into, peft, save_model};

/// The largest differences of a case.
#[derive(Debug, Clone, Copy)]
pub struct Differences {
    pub logits: f64,
    /// As a part of the largest number in each gradient.
    pub gradients: f64,
}

/// A decoder whose parameters, or adapters, are trained.
pub struct Trained {
    pub config: Config,
    pub decoder: Decoder,
    pub vars: VarMap,
}

/// The model of a folder, all of which is trained.
pub fn whole(folder: &Path) -> Result<Trained> {
    let (config, vars) = (Config::read(folder)?, VarMap::new());
    let base = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let decoder = Decoder::new(&config, base, None)?;
    load_into(&vars, folder)?;
    Ok(Trained {
        config,
        decoder,
        vars,
    })
}

/// The model of a folder, as constants, with the adapter of another folder.
pub fn adapted(folder: &Path, adapter: &Path) -> Result<Trained> {
    let base = Base::open(folder, DType::F32, &Device::Cpu)?;
    beside(base, Config::read(folder)?, adapter)
}

/// As [`adapted`], with the weights of the folder's `model.gguf`.
pub fn adapted_gguf(folder: &Path, adapter: &Path) -> Result<Trained> {
    let config = Config::read(folder)?;
    let file = folder.join("model.gguf");
    let base = Base::gguf(&file, &config, DType::F32, &Device::Cpu)?;
    beside(base, config, adapter)
}

/// As [`adapted`], with the weights of linear layers in NF4.
#[allow(dead_code, reason = "the tests have no use for it")]
pub fn adapted_nf4(folder: &Path, adapter: &Path) -> Result<Trained> {
    let config = Config::read(folder)?;
    let base = Base::quantized(folder, &config, Quantization::Nf4, DType::F32, &Device::Cpu)?;
    beside(base, config, adapter)
}

fn beside(base: Base, config: Config, adapter: &Path) -> Result<Trained> {
    let (vars, lora) = (VarMap::new(), peft::read_options(adapter)?);
    let decoder = Decoder::new(&config, base, Some((&lora, &vars)))?;
    peft::load_into(adapter, &vars)?;
    Ok(Trained {
        config,
        decoder,
        vars,
    })
}

/// What transformers computed.
pub struct Expected(HashMap<String, Tensor>);

impl Expected {
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("expected.safetensors");
        let tensors = candle_core::safetensors::load(&path, &Device::Cpu);
        Ok(Self(tensors.with_context(|| path.display().to_string())?))
    }

    pub fn get(&self, name: &str) -> Result<&Tensor> {
        let tensor = self.0.get(name);
        tensor.with_context(|| format!("expected.safetensors has no {name}"))
    }

    /// Compares logits, the loss and all gradients of what is trained, `base` or `lora`.
    pub fn compare(&self, kind: &str, trained: &Trained) -> Result<(Differences, GradStore)> {
        let (tokens, targets) = (
            &self.get("tokens")?.to_dtype(DType::U32)?,
            self.get("targets")?,
        );
        let logits = trained.decoder.forward(tokens)?;
        let loss = trained.decoder.loss_sum(tokens, targets)?.value;
        let gradients = loss.backward()?;
        let of_logits = largest_difference(&logits, self.get(&format!("{kind}.logits"))?)?;
        let of_loss = largest_difference(&loss, self.get(&format!("{kind}.loss"))?)?;
        let mut of_gradients = of_loss / f64::from(loss.to_scalar::<f32>()?);
        let mut count = 0;
        for (name, var) in named(&trained.vars) {
            let expected = self.get(&format!("{kind}.grad.{name}"))?;
            let found = gradients.get(&var);
            let found = found.with_context(|| format!("{name} has no gradient"))?;
            let largest = expected.abs()?.max_all()?.to_scalar::<f32>()?;
            let part = largest_difference(found, expected)? / f64::from(largest.max(1e-6));
            of_gradients = of_gradients.max(part);
            count += 1;
        }
        let prefix = format!("{kind}.grad.");
        let all = self.0.keys().filter(|name| name.starts_with(&prefix));
        let all = all.count();
        ensure!(count == all, "{count} gradients of {all}");
        let differences = Differences {
            logits: of_logits,
            gradients: of_gradients,
        };
        Ok((differences, gradients))
    }
}

/// Moves each parameter by its gradient, so that what is saved is not what was loaded.
pub fn descend(trained: &Trained, gradients: &GradStore, rate: f64) -> Result<()> {
    for (name, var) in named(&trained.vars) {
        let gradient = gradients.get(&var).with_context(|| name.clone())?;
        var.set(&(var.as_tensor() - (gradient * rate)?)?)?;
    }
    Ok(())
}

/// Saves a whole model in a folder.
pub fn save_whole(folder: &Path, trained: &Trained) -> Result<()> {
    save_model(folder, &trained.config, &trained.vars)
}

pub fn named(vars: &VarMap) -> Vec<(String, Var)> {
    let vars = vars.data().lock().map(|vars| vars.clone());
    vars.unwrap_or_default().into_iter().collect()
}

fn largest_difference(a: &Tensor, b: &Tensor) -> Result<f64> {
    ensure!(
        a.dims() == b.dims(),
        "{:?} beside {:?}",
        a.shape(),
        b.shape()
    );
    let difference = (a.to_dtype(DType::F64)? - b.to_dtype(DType::F64)?)?;
    let difference = difference.abs()?.flatten_all()?;
    // The largest of numbers is that of those that are not NaN.
    let sum: f64 = difference.sum_all()?.to_scalar()?;
    ensure!(sum.is_finite(), "the differences are not finite");
    Ok(difference.max(0)?.to_scalar()?)
}
