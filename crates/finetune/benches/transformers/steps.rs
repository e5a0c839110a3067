use std::fs;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use candle_core::{Device, Tensor};

use super::compared::{adapted, adapted_nf4, whole};

/// Takes steps, one for each line of standard input.
pub fn run(folder: &Path, what: &str, sizes: [&str; 2]) -> Result<()> {
    let mut trained = match what.strip_suffix("-recomputing").unwrap_or(what) {
        "full" => whole(folder)?,
        "lora" => adapted(folder, &folder.join("adapter"))?,
        "nf4" => adapted_nf4(folder, &folder.join("adapter"))?,
        other => bail!("`{other}` must be full, lora or nf4"),
    };
    trained.decoder.marks_blocks = what.ends_with("-recomputing");
    let [samples, time] = sizes.map(|size| size.parse::<usize>().context("no size"));
    let (samples, time) = (samples?, time?);
    // Made as in the Python side.
    let vocabulary = trained.config.vocab_size as u64;
    let text = (0..(samples * (time + 1)) as u64).map(|at| (at * 7919 % vocabulary) as u32);
    let text = Tensor::from_iter(text, &Device::Cpu)?.reshape((samples, time + 1))?;
    let (tokens, targets) = (text.narrow(1, 0, time)?, text.narrow(1, 1, time)?);
    let (tokens, targets) = (tokens.contiguous()?, targets.contiguous()?);
    for line in io::stdin().lock().lines() {
        line?;
        fs::write("/proc/self/clear_refs", "5")?;
        let began = Instant::now();
        let loss = trained.decoder.loss_sum(&tokens, &targets)?;
        let gradients = loss.value.backward()?;
        let missing = trained.vars.all_vars();
        let missing = missing.iter().any(|var| gradients.get(var).is_none());
        drop((loss, gradients));
        let seconds = began.elapsed().as_secs_f64();
        if missing {
            bail!("a parameter has no gradient")
        }
        println!("{seconds} {}", peak()?);
        io::stdout().flush()?;
    }
    Ok(())
}

/// The largest resident set since it was reset, in KiB.
fn peak() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(kib.context("no VmHWM")?.parse()?)
}
