//! The model with its parameters: those that are trained, and those that are not.

use std::path::Path;

use anyhow::{Context, Result};
use candle_core::{DType, Device};
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
        match lora(arguments)? {
            None => Self::open_whole(config, folder, arguments.dtype(), device),
            Some(lora) => {
                let base = open_weights(folder, arguments.dtype(), device)?;
                let network = Self::with_adapter(config, base, lora)?;
                match &arguments.lora.adapter {
                    Some(adapter) => peft::load_into(adapter, &network.trained)?,
                    None => {
                        let mut rng = StdRng::seed_from_u64(arguments.training.seed);
                        initialize(&network.trained, network.config.initializer_range, &mut rng)?;
                    }
                }
                Ok(network)
            }
        }
    }

    fn open_whole(config: Config, folder: &Path, dtype: DType, device: &Device) -> Result<Self> {
        let trained = VarMap::new();
        let vb = VarBuilder::from_varmap(&trained, dtype, device);
        let decoder = Decoder::new(&config, vb, None)?;
        load_into(&trained, folder)?;
        Ok(Self {
            config,
            lora: None,
            trained,
            decoder,
        })
    }

    /// The adapter's matrices are f32, whatever the base is.
    fn with_adapter(config: Config, base: VarBuilder, lora: Lora) -> Result<Self> {
        let trained = VarMap::new();
        let adapters = VarBuilder::from_varmap(&trained, DType::F32, base.device());
        let decoder = Decoder::new(&config, base.clone(), Some((&lora, adapters)))?;
        Ok(Self {
            config,
            lora: Some(lora),
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

    /// The number of trained elements.
    pub fn elements(&self) -> usize {
        self.trained
            .all_vars()
            .iter()
            .map(|var| var.elem_count())
            .sum()
    }

    /// What is trained, in words.
    pub fn describe(&self) -> String {
        match &self.lora {
            None => "all of them trained".to_owned(),
            Some(lora) => format!(
                "LoRA of rank {} on {}: {} trained",
                lora.rank,
                lora.targets.join(", "),
                self.elements()
            ),
        }
    }
}

/// The options of the adapter; `None` with `--full`.
fn lora(arguments: &Arguments) -> Result<Option<Lora>> {
    let options = &arguments.lora;
    if options.full {
        return Ok(None);
    }
    if let Some(folder) = &options.adapter {
        let read = peft::read_options(folder);
        return Ok(Some(
            read.with_context(|| format!("`--adapter {}`", folder.display()))?,
        ));
    }
    Ok(Some(Lora {
        rank: options.lora_rank,
        alpha: options.lora_alpha,
        targets: options.lora_targets.clone(),
        dropout: options.lora_dropout,
    }))
}
