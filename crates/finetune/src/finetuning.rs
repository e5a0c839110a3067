//! A run, from the model's files to the result's.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use candle_headroom::distributed::Group;
use candle_headroom::memory::Limit;

use crate::arguments::Arguments;
use crate::data::{Data, Sample};
use crate::network::Network;
use crate::sampling;
use crate::source;
use crate::support::display::Output;
use crate::support::ranks;
use crate::training::{self, Run, Trained};
use crate::vocabulary::{self, Vocabulary};
use headroom_finetune::model::{Config, peft};

/// Longest samples where nothing else is asked and the model allows it.
const CONTEXT: usize = 512;

/// Fine-tunes a model, and saves the result unless a signal stops the run.
pub fn finetune(
    mut arguments: Arguments,
    group: &Group,
    output: Output,
    began: Instant,
) -> Result<Trained> {
    ranks::own_options(group, &mut arguments.machine.device, &mut arguments.watch);
    let arguments = &arguments;
    let folder = source::find(&arguments.model, group)?;
    let config = Config::read(&folder)?;
    let vocabulary = Vocabulary::open(&folder, &config)?;
    let context = context(arguments, &config)?;
    let data = Data::read(&arguments.data, &vocabulary, context)?;
    let steps = steps(arguments, data.learned.len());
    let mut run = arguments.described(steps);
    run.push(data.checksum());
    compare(arguments, &run, group)?;
    if group.rank() == 0 {
        prepare(&arguments.model.output)?;
    }

    let machine = &arguments.machine;
    let limit = machine.budget.map_or(Limit::Unlimited, Limit::from);
    let memory = machine.device.open(limit)?;
    let parameters = config.parameters();
    let network = Network::open(arguments, config, &folder, memory.device())?;
    output.say(format!(
        "model {}: {parameters} parameters in {}, {}",
        folder.display(),
        arguments.dtype().as_str(),
        network.describe()
    ))?;
    let tokens: usize = data.learned.iter().map(Sample::learned).sum();
    output.say(format!(
        "data: {} samples of at most {context} tokens, {tokens} to learn; {} held out{}",
        data.learned.len(),
        data.held_out.len(),
        data.cut
    ))?;

    let still = network.decoder.evaluation();
    let prompt = match data.held_out.first().or(data.learned.first()) {
        Some(sample) => sampling::prompt(arguments, &vocabulary, sample)?,
        None => bail!("there is nothing to continue"),
    };
    let shows = arguments.sampling.sample > 0 && output.is_heard && !prompt.is_empty();
    let show = |when: &str| -> Result<()> {
        let text = sampling::sample(&still, &vocabulary, &prompt, arguments)?;
        output.say(format!("\n{when}:\n{text}\n"))
    };
    if shows {
        show("before")?;
    }
    let held_out = data.held_out;
    let save = || match group.rank() {
        0 => save(arguments, &network, &folder),
        _ => Ok(()),
    };
    let run = Run {
        arguments,
        group,
        output,
        memory: &memory,
        network: &network,
        still: &still,
        held_out: &held_out,
        save: &save,
        described: &run,
        steps,
        began,
    };
    let trained = training::train(&run, Arc::new(data.learned))?;
    if matches!(trained, Trained::Stopped(_)) {
        return Ok(trained);
    }
    if group.rank() == 0 {
        let what = match &network.lora {
            Some(_) => "the adapter",
            None => "the model",
        };
        output.say(format!("{}: {what}", arguments.model.output.display()))?;
        if shows {
            network.read_again(&arguments.model.output)?;
            show("after, read again from there")?;
        }
    }
    group.barrier()?;
    Ok(trained)
}

fn save(arguments: &Arguments, network: &Network, folder: &Path) -> Result<()> {
    let (options, base) = (&arguments.model, folder.display().to_string());
    // As it was named: an id of the hub stays one.
    let base = match options.model.as_deref() {
        Some(name) if !Path::new(name).is_dir() => peft::Base {
            name,
            revision: Some(&options.revision),
        },
        _ => peft::Base {
            name: &base,
            revision: None,
        },
    };
    network
        .save(&options.output, &base)
        .and_then(|()| copy_tokenizer(folder, &options.output))
        .with_context(|| format!("the result is not whole in {}", options.output.display()))
}

/// The longest sample, within what the model allows.
fn context(arguments: &Arguments, config: &Config) -> Result<usize> {
    let most = config.max_position_embeddings;
    let context = arguments.data.context.unwrap_or(most.min(CONTEXT));
    ensure!(
        context <= most,
        "--context {context} is too long: this model has been made for at most {most} tokens"
    );
    Ok(context)
}

fn steps(arguments: &Arguments, samples: usize) -> usize {
    let of_epoch = samples.div_ceil(arguments.data.batch);
    let of_epochs = of_epoch.saturating_mul(arguments.training.epochs);
    arguments.training.steps.unwrap_or(of_epochs)
}

/// Fails on every rank if one has other options or data.
fn compare(arguments: &Arguments, run: &[String], group: &Group) -> Result<()> {
    let watch = &arguments.watch;
    let files = [
        ranks::path("--report", &watch.report),
        ranks::path("--trace", &watch.trace),
    ];
    ranks::compare(group, &[run, &files].concat())
}

/// Makes the folder, and refuses one that holds a model: it would be lost.
fn prepare(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let files = [
        "adapter_model.safetensors",
        "model.safetensors",
        "model.safetensors.index.json",
    ];
    if let Some(file) = files.iter().find(|file| folder.join(file).exists()) {
        bail!(
            "{} holds {file}: name another folder by `--output`, or remove it",
            folder.display()
        );
    }
    Ok(())
}

/// Copies the tokenizer's files, so that the result can be used alone.
fn copy_tokenizer(from: &Path, to: &Path) -> Result<()> {
    for file in [vocabulary::TOKENIZER].iter().chain(&vocabulary::BESIDE) {
        let (from, to) = (from.join(file), to.join(file));
        if from.is_file() {
            fs::copy(&from, &to)
                .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
        }
    }
    Ok(())
}
