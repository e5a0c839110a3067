//! The table: how many Vars each model reaches, with which gradients, and for how many bytes.

use crate::models::named;
use crate::outcome::Outcome;
use crate::verdict::{Run, Verdict, first_line};
use std::path::Path;

/// Models that compare each image of a batch with each of its texts, so that their loss depends on the cut and has to be refused. That of no
/// other model does.
const OF_PAIRS: [&str; 3] = ["clip", "chinese_clip", "siglip"];

#[derive(Default)]
struct Count {
    reached: usize,
    right: usize,
}

impl Count {
    fn add(&mut self, verdict: &Verdict) {
        self.reached += usize::from(verdict.reached);
        self.right += usize::from(verdict.right);
    }
}

/// Fails at the end if a model is not as its description says.
pub fn print(
    original: Option<&Path>,
    plain: &Path,
    ours: &Path,
    names: &[&str],
) -> anyhow::Result<()> {
    println!(
        "| model | Vars | reached with candle_nn (right) | reached here (right) | MiB for a sample: plain → here | remarks |\n\
         |---|---|---|---|---|---|"
    );
    let (mut before, mut after) = (Count::default(), Count::default());
    let (mut documented, mut failed) = (vec![], vec![]);
    let (mut checked, mut agreeing, mut refused, mut of_pairs) = (0, 0, 0, 0);
    let mut worst = (0.0, String::new());
    for name in names {
        let model = named(name)?;
        let load = |folder: &Path| Outcome::load(folder, name);
        let (original, plain, ours) = (original.map(load).transpose()?, load(plain)?, load(ours)?);
        let judge = |run: &Run| Verdict::new(&model, run, &plain);
        let (of_original, of_ours) = (original.as_ref().map(judge).transpose()?, judge(&ours)?);
        if let Some(of_original) = &of_original {
            before.add(of_original);
        }
        after.add(&of_ours);

        let is_of_pairs = OF_PAIRS.contains(name);
        match &ours.0.cut {
            Some(Ok(found)) if is_of_pairs => {
                checked += 1;
                failed.push(format!("{name}: a loss of pairs is not refused: {found}"));
            }
            Some(Err(error))
                if is_of_pairs && error.contains("the loss depends on how the batch is cut") =>
            {
                (checked, of_pairs) = (checked + 1, of_pairs + 1);
            }
            Some(Ok(found)) => {
                checked += 1;
                agreeing += usize::from(found.contains("does not depend"));
            }
            Some(Err(error)) => {
                (checked, refused) = (checked + 1, refused + 1);
                failed.push(format!("{name}: {}", first_line(error)));
            }
            None => {}
        }
        let faults = &of_ours.faults;
        let cut = model.detached.first().map(|(_, reason)| *reason);
        match model.impossible.or(cut) {
            _ if !faults.is_empty() => failed.push(format!("{name}: {}", faults.join("; "))),
            Some(reason) => documented.push(format!("{name} ({reason})")),
            None => {}
        }
        if let Some((apart, var)) = of_ours.worst.as_ref()
            && (*apart > worst.0 || apart.is_nan())
        {
            worst = (*apart, format!("`{var}` of {name}"));
        }

        let mut remarks = vec![model.remark.to_string()];
        remarks.extend(of_ours.remarks.iter().cloned());
        remarks.extend(errors(original.as_ref(), &plain, &ours));
        if let Some(of_original) = &of_original {
            let wrong = |fault: &&String| fault.starts_with("the output is wrong");
            let wrong = of_original.faults.iter().filter(wrong);
            remarks.extend(wrong.map(|fault| format!("candle_nn: {fault}")));
        }
        remarks.extend(faults.iter().map(|fault| format!("**{fault}**")));
        remarks.retain(|remark| !remark.is_empty());
        let cell = |run: &Run, verdict: &Verdict| match model.random {
            true => format!("{} (–)", run.1.len()),
            false => format!("{} ({})", run.1.len(), verdict.agree),
        };
        println!(
            "| {name} | {} | {} | {} | {} | {} |",
            plain.0.vars.len().max(ours.0.vars.len()),
            original
                .as_ref()
                .zip(of_original.as_ref())
                .map(|(run, verdict)| cell(run, verdict))
                .unwrap_or_default(),
            cell(&ours, &of_ours),
            match (plain.0.bytes_per_sample, ours.0.bytes_per_sample) {
                (Some(plain), Some(ours)) => format!("{} → {}", mib(plain), mib(ours)),
                _ => "–".to_string(),
            },
            remarks.join("; ")
        );
    }
    let figure = |name: &str, count: usize| println!("figure: nn/models_{name} = {count} models");
    println!();
    figure("tried", names.len());
    if original.is_some() {
        figure("fully_reached_candle_nn", before.reached);
        figure("right_candle_nn", before.right);
    }
    figure("fully_reached", after.reached);
    figure("right", after.right);
    println!("figure: cut/models_checked = {checked} models");
    println!("figure: cut/models_that_agree = {agreeing} models");
    println!("figure: cut/models_of_pairs_refused = {of_pairs} models");
    println!("figure: cut/models_refused_wrongly = {refused} models");
    println!(
        "largest relative difference of a gradient: {:.1e}, {}",
        worst.0, worst.1
    );
    if !documented.is_empty() {
        let documented = documented.join(", ");
        println!("not trainable whole by the one line, as documented: {documented}");
    }
    anyhow::ensure!(failed.is_empty(), "not as described\n{}", failed.join("\n"));
    Ok(())
}

/// Errors of the variants; one that all share is named once.
fn errors(original: Option<&Run>, plain: &Run, ours: &Run) -> Vec<String> {
    let variants = [
        ("candle_nn: ", original),
        ("plain: ", Some(plain)),
        ("candle_headroom::nn: ", Some(ours)),
    ];
    let tried = variants
        .iter()
        .filter_map(|(variant, run)| Some((*variant, run.as_ref()?.0.error.as_deref())));
    let tried: Vec<_> = tried
        .map(|(variant, error)| (variant, error.map(first_line)))
        .collect();
    match tried.as_slice() {
        [(_, Some(first)), others @ ..]
            if others.iter().all(|(_, error)| *error == Some(first)) =>
        {
            vec![first.to_string()]
        }
        _ => tried
            .iter()
            .filter_map(|(variant, error)| Some(format!("{variant}{}", (*error)?)))
            .collect(),
    }
}

fn mib(bytes: f64) -> String {
    format!("{:.3}", bytes / (1 << 20) as f64)
}
