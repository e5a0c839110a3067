//! A run, from the model's files to the result's.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use candle_headroom::distributed::Group;
use candle_headroom::memory::Limit;

use crate::arguments::Arguments;
use crate::data::{Data, Sample};
use crate::network::Network;
use crate::source;
use crate::support::display::Output;
use crate::support::ranks;
use crate::training::{self, Run, Trained};
use crate::vocabulary::Vocabulary;
use headroom_finetune::model::{Config, INDEX, WEIGHTS, peft};

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
    // Those of another file are not fetched.
    let has_weights = !arguments.machine.planned && arguments.model.weights.is_none();
    let folder = source::find(&arguments.model, has_weights, group)?;
    let config = Config::read(&folder)?;
    let vocabulary = Vocabulary::open(&folder, &config)?;
    let most = config.max_position_embeddings;
    let context = arguments.data.context.unwrap_or(most.min(CONTEXT));
    ensure!(
        context <= most,
        "--context {context} is too long: this model has been made for at most {most} tokens"
    );
    let data = Data::read(&arguments.data, &vocabulary, context)?;
    let of_epoch = data.learned.len().div_ceil(arguments.data.batch);
    let of_epochs = of_epoch.saturating_mul(arguments.training.epochs);
    let steps = arguments.training.steps.unwrap_or(of_epochs);
    let mut described = arguments.described(steps);
    described.push(data.checksum());
    let watch = &arguments.watch;
    let report = ranks::path("--report", &watch.report);
    let files = [report, ranks::path("--trace", &watch.trace)];
    ranks::compare(group, &[&described[..], &files].concat())?;
    let result = &arguments.model.output;
    if group.rank() == 0 {
        prepare(result)?;
    }

    let machine = &arguments.machine;
    let limit = machine.budget.map_or(Limit::Unlimited, Limit::from);
    let memory = machine.device.open(limit)?;
    let parameters = config.parameters();
    let network = Network::open(arguments, config, &folder, memory.device())?;
    output.say(format!(
        "model {}: {parameters} parameters in {}{}, {}",
        folder.display(),
        arguments.dtype().as_str(),
        arguments.model.of_base(),
        network.describe()
    ))?;
    let tokens: usize = data.learned.iter().map(Sample::to_learn).sum();
    output.say(format!(
        "data: {} samples of at most {context} tokens, {tokens} to learn; {} held out{}",
        data.learned.len(),
        data.held_out.len(),
        data.cut
    ))?;

    let first = data.held_out.first().or(data.learned.first());
    let prompt = match &arguments.sampling.prompt {
        Some(prompt) => [&vocabulary.begin[..], &vocabulary.encode(prompt)?].concat(),
        None => first.map_or(Vec::new(), Sample::beginning),
    };
    let most = arguments.sampling.sample;
    let shows = most > 0 && output.is_text() && !prompt.is_empty();
    let show = |when: &str| -> Result<()> {
        let is_end = |token| vocabulary.ends.contains(&token);
        let made = network.decoder.generate(&prompt, most, is_end)?;
        let [given, made] = [vocabulary.decode(&prompt)?, vocabulary.decode(&made)?];
        output.say(format!("\n{when}:\n{given}▸{}\n", made.trim()))
    };
    if shows {
        show("before")?;
    }
    let run = Run {
        arguments,
        group,
        output,
        memory: &memory,
        network: &network,
        held_out: &data.held_out,
        described: &described,
        steps,
        began,
    };
    let trained = training::train(&run, data.learned)?;
    let Trained::Continue(progress) = &trained else {
        return Ok(trained);
    };
    output.say(format!("{}: the result", result.display()))?;
    if shows {
        network.read(result)?;
        show("after, read again from there")?;
    }
    group.barrier()?;
    progress.finish(&arguments.next())?;
    Ok(trained)
}

/// Makes the folder, and refuses one that holds a model: it would be lost.
fn prepare(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let files = [peft::WEIGHTS, WEIGHTS, INDEX];
    if let Some(file) = files.iter().find(|file| folder.join(file).exists()) {
        bail!(
            "{} holds {file}: name another folder by `--output`, or remove it",
            folder.display()
        );
    }
    Ok(())
}
