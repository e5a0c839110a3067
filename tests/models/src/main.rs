//! Runs candle-transformers' models on small configurations. scripts/try-models.sh builds this program three times, with candle_nn,
//! with plain compositions and with candle_headroom::nn, and has the last one print the table.

#[cfg(feature = "trainer")]
mod cut;
mod inputs;
#[cfg(feature = "trainer")]
mod lora;
mod memory;
mod models;
mod outcome;
mod parameters;
mod run;
mod table;
mod verdict;

use outcome::Outcome;
use std::path::Path;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

const USAGE: &str = "usage: models list | quick | run FOLDER MODEL… | bytes FOLDER MODEL… | slopes MODEL | lora MODEL… | update MODEL | table ORIGINAL|- PLAIN OURS MODEL…";

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["list"] => models::all()
            .iter()
            .for_each(|model| println!("{}", model.name)),
        ["quick"] => models::all()
            .iter()
            .filter(|model| !model.slow)
            .for_each(|model| println!("{}", model.name)),
        ["run", folder, names @ ..] => names
            .iter()
            .try_for_each(|name| run_one(Path::new(folder), name))?,
        ["bytes", folder, names @ ..] => names
            .iter()
            .try_for_each(|name| measure_one(Path::new(folder), name))?,
        ["update", name] => run::updates(&models::named(name)?)?,
        ["slopes", name] => run::slopes(&models::named(name)?)?,
        #[cfg(feature = "trainer")]
        ["lora", names @ ..] => lora::run(names)?,
        ["table", original, plain, ours, names @ ..] => {
            let original = (*original != "-").then(|| Path::new(*original));
            table::print(original, Path::new(plain), Path::new(ours), names)?
        }
        _ => anyhow::bail!(USAGE),
    }
    Ok(())
}

fn run_one(folder: &Path, name: &str) -> anyhow::Result<()> {
    let model = models::named(name)?;
    let parameters = parameters::Parameters::without(model.absent);
    let own = parameters.clone();
    let result = in_own_thread(move || run::run(&model, own))?;
    let (outcome, gradients) = result.unwrap_or_else(|error| {
        let outcome = Outcome {
            vars: parameters.vars().into_keys().collect(),
            error: Some(error),
            ..Outcome::default()
        };
        (outcome, Default::default())
    });
    match &outcome.error {
        Some(error) => eprintln!("{name}: {}", verdict::first_line(error)),
        None => eprintln!(
            "{name}: {} of {} Vars, {:.2} s",
            gradients.len(),
            outcome.vars.len(),
            outcome.seconds
        ),
    }
    outcome.save(folder, name, &gradients)
}

/// Measures the bytes of a model that `run` has run, and puts them in the place of those that it measured.
fn measure_one(folder: &Path, name: &str) -> anyhow::Result<()> {
    let (mut outcome, gradients) = Outcome::load(folder, name)?;
    if outcome.bytes_per_sample.is_some() {
        let model = models::named(name)?;
        let bytes = in_own_thread(move || run::bytes(&model))?;
        outcome.bytes_per_sample = bytes.map_err(anyhow::Error::msg)?;
    }
    outcome.save(folder, name, &gradients.into_iter().collect())
}

/// candle's backward pass is recursive, and a model may panic.
fn in_own_thread<T: Send + 'static>(
    work: impl FnOnce() -> candle_core::Result<T> + Send + 'static,
) -> anyhow::Result<Result<T, String>> {
    let thread = std::thread::Builder::new().stack_size(256 << 20);
    Ok(match thread.spawn(work)?.join() {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or(panic.downcast_ref::<&str>().map(|text| text.to_string()));
            Err(format!("panicked: {}", text.unwrap_or_default()))
        }
    })
}
