//! The table: how many Vars each model reaches, with which gradients, and for how many bytes.

use crate::models::{Model, is_statistic, named};
use crate::outcome::Outcome;
use crate::run::norm;
use candle_core::Tensor;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

type Run = (Outcome, HashMap<String, Tensor>);

/// A gradient's difference from the reference counts in proportion to its norm, but not below this part of the whole gradient's: a
/// key's bias, for example, has no effect on attention, and its gradient is rounding.
const FLOOR: f64 = 1e-4;
/// A gradient is right if it differs by less; mmdit computes in f16.
const RIGHT: f64 = 0.01;

pub fn print(
    original: Option<&Path>,
    plain: &Path,
    ours: Option<&Path>,
    names: &[&str],
) -> anyhow::Result<()> {
    println!(
        "| model | Vars | reached with candle_nn (right) | with candle_headroom::nn (right) | MiB per sample, plain | \
         candle_headroom::nn | worst relative difference of a gradient | remarks |\n|---|---|---|---|---|---|---|---|"
    );
    let (mut before, mut after) = (Count::default(), Count::default());
    let (mut documented, mut failed) = (vec![], vec![]);
    for name in names {
        let model = named(name)?;
        let load =
            |folder: Option<&Path>| folder.map(|folder| Outcome::load(folder, name)).transpose();
        let (original, plain, ours) = (load(original)?, Outcome::load(plain, name)?, load(ours)?);
        let compared = |run: &Option<Run>| run.as_ref().map(|run| compare(run, &plain)).transpose();
        let (of_original, of_ours) = (compared(&original)?, compared(&ours)?);
        // While there is no candle_headroom::nn, the plain compositions stand in for it.
        let shown = ours.as_ref().unwrap_or(&plain);
        before.add(&model, original.as_ref(), of_original.as_ref());
        let good = after.add(&model, Some(shown), of_ours.as_ref());
        match model.impossible {
            _ if good => {}
            Some(reason) => documented.push(format!("{name} ({reason})")),
            None => failed.push(*name),
        }

        let mut remarks = vec![model.remark.to_string()];
        remarks.extend(checks(&model, shown, &plain)?);
        let variants = [
            ("candle_nn", original.as_ref()),
            ("plain", Some(&plain)),
            ("candle_headroom::nn", ours.as_ref()),
        ];
        for (variant, run) in variants
            .into_iter()
            .filter_map(|(variant, run)| Some((variant, &run?.0)))
        {
            match &run.error {
                Some(error) => remarks.push(format!(
                    "{variant}: {}",
                    error.lines().next().unwrap_or_default()
                )),
                None if (run.loss / plain.0.loss - 1.0).abs() > RIGHT
                    && plain.0.error.is_none() =>
                {
                    remarks.push(format!(
                        "{variant}: the output is wrong, with a loss of {:.4} in place of {:.4}",
                        run.loss, plain.0.loss
                    ));
                }
                None => {}
            }
        }
        remarks.retain(|remark| !remark.is_empty());
        let cell = |run: Option<&Run>, compared: Option<&Compared>| match (run, compared) {
            (Some(run), Some(compared)) => format!("{} ({})", run.1.len(), compared.right),
            (Some(run), None) => run.1.len().to_string(),
            (None, _) => String::new(),
        };
        println!(
            "| {name} | {} | {} | {} | {} | {} | {} | {} |",
            plain.0.vars.len().max(shown.0.vars.len()),
            cell(original.as_ref(), of_original.as_ref()),
            cell(Some(shown), of_ours.as_ref()),
            mib(Some(&plain)),
            mib(ours.as_ref()),
            of_ours
                .and_then(|of_ours| of_ours.worst)
                .map(|(apart, var)| format!("{apart:.0e} `{var}`"))
                .unwrap_or_default(),
            remarks.join("; ")
        );
    }
    println!("\nfigure: nn/models_tried = {} models", names.len());
    let figure = |name: &str, count: usize| println!("figure: nn/models_{name} = {count} models");
    if original.is_some() {
        figure("fully_reached_candle_nn", before.reached);
        figure("right_candle_nn", before.right);
    }
    if ours.is_some() {
        figure("fully_reached", after.reached);
        figure("right", after.right);
    }
    if !documented.is_empty() {
        println!(
            "not trainable by the one line, as documented: {}",
            documented.join(", ")
        );
    }
    anyhow::ensure!(
        failed.is_empty(),
        "not reached or not right: {}",
        failed.join(", ")
    );
    Ok(())
}

#[derive(Default)]
struct Count {
    reached: usize,
    right: usize,
}

impl Count {
    /// Returns whether every Var is reached but those that are documented, with a right gradient.
    fn add(&mut self, model: &Model, run: Option<&Run>, compared: Option<&Compared>) -> bool {
        let Some((outcome, gradients)) = run else {
            return false;
        };
        let mut needed = outcome
            .vars
            .iter()
            .filter(|var| model.why_unused(var).is_none());
        let reached = outcome.error.is_none() && needed.all(|var| gradients.contains_key(var));
        // The reference itself has nothing to be compared with.
        let right = reached && compared.is_none_or(|compared| compared.right == gradients.len());
        self.reached += usize::from(reached);
        self.right += usize::from(right);
        right
    }
}

struct Compared {
    /// Number of gradients that agree with the reference's.
    right: usize,
    worst: Option<(f64, String)>,
}

fn compare(run: &Run, plain: &Run) -> anyhow::Result<Compared> {
    let norms = plain
        .1
        .iter()
        .map(|(name, gradient)| Ok((name, norm(gradient)?)))
        .collect::<anyhow::Result<HashMap<_, _>>>()?;
    let whole = norms.values().map(|norm| norm * norm).sum::<f64>().sqrt();
    let mut compared = Compared {
        right: 0,
        worst: None,
    };
    for (name, reference) in &plain.1 {
        let Some(gradient) = run.1.get(name) else {
            continue;
        };
        let apart = norm(&(gradient - reference)?)? / norms[name].max(FLOOR * whole);
        compared.right += usize::from(apart <= RIGHT);
        // Also if it is not a number.
        if compared
            .worst
            .as_ref()
            .is_none_or(|(most, _)| apart.is_nan() || apart > *most)
        {
            compared.worst = Some((apart, name.clone()));
        }
    }
    Ok(compared)
}

/// What a reader should know about a run's gradients.
fn checks(model: &Model, (outcome, gradients): &Run, plain: &Run) -> anyhow::Result<Vec<String>> {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut missing, mut zero, mut fused, mut wrong) = (vec![], 0, 0, vec![]);
    for var in &outcome.vars {
        match (gradients.get(var), model.why_unused(var)) {
            (None, Some(reason)) => *reasons.entry(reason).or_default() += 1,
            (None, None) => missing.push(format!("`{var}`")),
            // Where BatchNorm is fused into the convolution at load time, its statistics are weights like others.
            (Some(_), Some(_)) if is_statistic(var) => fused += 1,
            (Some(_), Some(reason)) => {
                wrong.push(format!("`{var}` is reached, though noted as {reason}"))
            }
            (Some(gradient), None) => zero += usize::from(norm(gradient)? == 0.0),
        }
    }
    let mut remarks: Vec<String> = reasons
        .iter()
        .map(|(reason, count)| format!("{count} unused: {reason}"))
        .collect();
    if !missing.is_empty() {
        remarks.push(format!(
            "**{} not reached**: {}",
            missing.len(),
            missing[..missing.len().min(4)].join(", ")
        ));
    }
    if fused > 0 {
        remarks.push(format!(
            "BatchNorm is fused at load time, so {fused} running statistics receive gradients too"
        ));
    }
    if zero > 0 {
        remarks.push(format!("{zero} gradients are zero"));
    }
    if let Some(slope) = plain.0.slope.filter(|slope| (slope - 1.0).abs() > 0.05) {
        remarks.push(format!(
            "the loss changes {slope:.3} times as the plain gradient says"
        ));
    }
    remarks.extend(wrong);
    Ok(remarks)
}

fn mib(run: Option<&Run>) -> String {
    match run.map(|run| run.0.bytes_per_sample) {
        Some(Some(bytes)) => format!("{:.3}", bytes / (1 << 20) as f64),
        Some(None) => "–".to_string(),
        None => String::new(),
    }
}
