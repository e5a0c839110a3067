//! The model with its parameters: those that are trained, with what moves them, and those that are not.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use candle_core::{DType, Device};
use candle_headroom::nn::lora::Lora;
use candle_headroom::optim::{Group, LossScale};
use candle_headroom::{AdamW, LearningRate};
use candle_nn::{VarBuilder, VarMap};
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::arguments::{Arguments, ModelOptions};
use crate::vocabulary;
use headroom_finetune::model::{Base, Config, Decoder, initialize, load_into, peft, save_model};

pub struct Network {
    /// Of the model that it began with.
    folder: PathBuf,
    config: Config,
    /// `None` where all parameters are trained.
    lora: Option<Lora>,
    /// The trained parameters.
    trained: VarMap,
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
        let (options, trained, dtype) = (&arguments.lora, VarMap::new(), arguments.dtype());
        let lora = match &options.adapter {
            _ if options.full => None,
            None => Some(options.new_adapter()),
            Some(folder) => {
                let read = peft::read_options(folder);
                Some(read.with_context(|| format!("`--adapter {}`", folder.display()))?)
            }
        };
        let decoder = match &lora {
            None => {
                let vars = VarBuilder::from_varmap(&trained, dtype, device);
                Decoder::new(&config, vars, None)?
            }
            // An adapter's matrices are f32, whatever the base is.
            Some(lora) => {
                let named = &arguments.model;
                let base = match (&named.weights, named.quantize) {
                    (None, kind) if arguments.machine.planned => {
                        Base::planned(&config, kind, dtype, device)?
                    }
                    (Some(file), _) => Base::gguf(file, &config, dtype, device)?,
                    (None, Some(kind)) => Base::quantized(folder, &config, kind, dtype, device)?,
                    (None, None) => Base::open(folder, dtype, device)?,
                };
                Decoder::new(&config, base, Some((lora, &trained)))?
            }
        };
        let network = Self {
            folder: folder.to_owned(),
            config,
            lora,
            trained,
            decoder,
        };
        match &options.adapter {
            None if !options.full => {
                let mut rng = StdRng::seed_from_u64(arguments.training.seed);
                initialize(&network.trained, network.config.initializer_range, &mut rng)?;
            }
            None if arguments.machine.planned => {}
            adapter => network.read(adapter.as_deref().unwrap_or(folder))?,
        }
        Ok(network)
    }

    /// Sets what is trained to what is in a folder: no second model is in memory.
    pub fn read(&self, folder: &Path) -> Result<()> {
        match &self.lora {
            Some(_) => peft::load_into(folder, &self.trained),
            None => load_into(&self.trained, folder),
        }
    }

    /// Saves what was trained, with the tokenizer, so that the result can be used alone.
    pub fn save(&self, options: &ModelOptions) -> Result<()> {
        let (output, folder) = (&options.output, self.folder.display().to_string());
        // As it was named: an id of the hub stays one.
        let base = match options.model.as_deref() {
            Some(name) if !Path::new(name).is_dir() => (name, Some(&*options.revision)),
            _ => (&*folder, None),
        };
        let saved = match &self.lora {
            Some(lora) => peft::save(output, base, lora, &self.trained),
            None => save_model(output, &self.config, &self.trained),
        };
        saved
            .and_then(|()| vocabulary::copy(&self.folder, output))
            .with_context(|| format!("the result is not whole in {}", output.display()))
    }

    /// What is trained, in words.
    pub fn describe(&self) -> String {
        match &self.lora {
            None => "all of them trained".to_owned(),
            Some(lora) => {
                let vars = self.trained.all_vars();
                let elements: usize = vars.iter().map(|var| var.elem_count()).sum();
                let (rank, targets) = (lora.rank, lora.targets.join(", "));
                let kind = if lora.dora { "DoRA" } else { "LoRA" };
                format!("{kind} of rank {rank} on {targets}: {elements} trained")
            }
        }
    }

    /// AdamW, whose weight decay leaves norms and biases alone.
    pub fn optimizer(&self, arguments: &Arguments, rates: &LearningRate) -> Result<AdamW> {
        let options = &arguments.training;
        let trained = Group::from(&self.trained);
        let (matrices, others) = trained.partition(|_, var| var.rank() > 1);
        let mut builder = AdamW::builder(matrices)
            .group(others.weight_decay(0.))
            .learning_rate(rates.at(0))
            .weight_decay(options.weight_decay)
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
