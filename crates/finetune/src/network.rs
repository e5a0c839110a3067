//! The model with its parameters: those that are trained, with what moves them, and those that are not.

use std::path::Path;

use anyhow::{Context, Result};
use candle_core::{DType, Device};
use candle_headroom::optim::{Group, LossScale, ParamsAdamW};
use candle_headroom::{AdamW, LearningRate};
use candle_nn::{VarBuilder, VarMap};
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::arguments::Arguments;
use headroom_finetune::model::{
    Config, Decoder, Lora, initialize, load_into, open_weights, peft, save_model,
};

pub struct Network {
    pub config: Config,
    /// `None` where all parameters are trained.
    pub lora: Option<Lora>,
    /// The trained parameters.
    pub trained: VarMap,
    pub decoder: Decoder,
}

impl Network {
    /// Opens the model in a folder, with a new adapter, or with that of `--adapter`.
    pub fn open(
        arguments: &Arguments,
        config: Config,
        folder: &Path,
        device: &Device,
    ) -> Result<Self> {
        let (lora, trained, dtype) = (lora(arguments)?, VarMap::new(), arguments.dtype());
        // An adapter's matrices are f32, whatever the base is.
        let vars = |dtype| VarBuilder::from_varmap(&trained, dtype, device);
        let decoder = match &lora {
            None => Decoder::new(&config, vars(dtype), None)?,
            Some(lora) => {
                let base = open_weights(folder, dtype, device)?;
                Decoder::new(&config, base, Some((lora, vars(DType::F32))))?
            }
        };
        match (&lora, &arguments.lora.adapter) {
            (None, _) => load_into(&trained, folder)?,
            (_, Some(adapter)) => peft::load_into(adapter, &trained)?,
            (_, None) => {
                let mut rng = StdRng::seed_from_u64(arguments.training.seed);
                initialize(&trained, config.initializer_range, &mut rng)?;
            }
        }
        Ok(Self {
            config,
            lora,
            trained,
            decoder,
        })
    }

    /// Saves what was trained.
    pub fn save(&self, folder: &Path, base: &peft::Base) -> Result<()> {
        match &self.lora {
            Some(lora) => peft::save(folder, base, lora, &self.trained, &self.config),
            None => save_model(folder, &self.config, &self.trained),
        }
    }

    /// Sets what was trained to what was saved: no second model is in memory.
    pub fn read_again(&self, folder: &Path) -> Result<()> {
        match &self.lora {
            Some(_) => peft::load_into(folder, &self.trained),
            None => load_into(&self.trained, folder),
        }
    }

    /// What is trained, in words.
    pub fn describe(&self) -> String {
        match &self.lora {
            None => "all of them trained".to_owned(),
            Some(lora) => {
                let vars = self.trained.all_vars();
                let elements: usize = vars.iter().map(|var| var.elem_count()).sum();
                let (rank, targets) = (lora.rank, lora.targets.join(", "));
                format!("LoRA of rank {rank} on {targets}: {elements} trained")
            }
        }
    }

    /// AdamW, whose weight decay leaves norms and biases alone.
    pub fn optimizer(&self, arguments: &Arguments, rates: &LearningRate) -> Result<AdamW> {
        let options = &arguments.training;
        let params = ParamsAdamW {
            lr: rates.at(0),
            weight_decay: options.weight_decay,
            ..ParamsAdamW::default()
        };
        let trained = Group::from(&self.trained);
        let (matrices, others) = trained.partition(|_, var| var.rank() > 1);
        let mut builder = AdamW::builder(matrices)
            .group(others.weight_decay(0.))
            .params(params)
            .moments(arguments.machine.moments);
        if options.clip > 0. {
            builder = builder.clip_norm(options.clip);
        }
        let dtype = arguments.dtype();
        // An adapter is f32 itself.
        if dtype != DType::F32 && self.lora.is_none() {
            builder = builder.master_weights();
        }
        if dtype == DType::F16 {
            builder = builder.loss_scale(LossScale::dynamic());
        }
        Ok(builder.build()?)
    }
}

/// The options of the adapter; `None` with `--full`.
fn lora(arguments: &Arguments) -> Result<Option<Lora>> {
    let options = &arguments.lora;
    if options.full {
        return Ok(None);
    }
    if let Some(folder) = &options.adapter {
        let read = peft::read_options(folder).map(Some);
        return read.with_context(|| format!("`--adapter {}`", folder.display()));
    }
    Ok(Some(Lora {
        rank: options.lora_rank,
        alpha: options.lora_alpha,
        targets: options.lora_targets.clone(),
        dropout: options.lora_dropout,
    }))
}
