//! Folders of adapters: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use candle_headroom::nn::VarMap;
use candle_headroom::nn::lora::{ALL_LINEAR, Lora};
use serde_json::{Value, json};

use super::config::{Fields, write_json};
use super::parameters::{self, Weights, fill, named};

const OPTIONS: &str = "adapter_config.json";
pub const WEIGHTS: &str = "adapter_model.safetensors";

/// Saves adapters in a folder that PEFT reads. It is made if it is missing. `base` is the model's folder, or its id on the hub with the
/// revision.
pub fn save(
    folder: &Path,
    base: (&str, Option<&str>),
    lora: &Lora,
    adapters: &VarMap,
) -> Result<()> {
    // PEFT declares a whole number.
    let alpha = match lora.alpha.fract() == 0. {
        true => json!(lora.alpha as u64),
        false => json!(lora.alpha),
    };
    let options = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.0,
        "revision": base.1,
        "inference_mode": true,
        "r": lora.rank,
        "lora_alpha": alpha,
        "lora_dropout": lora.dropout,
        "target_modules": target_modules(lora, adapters),
        "use_rslora": lora.rank_stabilized,
        "use_dora": lora.dora,
        "bias": "none",
    });
    write_json(folder, OPTIONS, &options)?;
    parameters::save(adapters, &folder.join(WEIGHTS))
}

/// The layers that have adapters, as PEFT reads them: it knows no `*`, and what its `all-linear` is depends on the class of the model.
fn target_modules(lora: &Lora, adapters: &VarMap) -> Vec<String> {
    let is_all = lora.targets.iter().any(|target| target == ALL_LINEAR);
    if !is_all && !lora.targets.iter().any(|target| target.contains('*')) {
        return lora.targets.clone();
    }
    let path = |name: &String| {
        let path = name.strip_prefix("base_model.model.")?;
        let path = path.strip_suffix(".lora_A.weight")?;
        let last = path.rsplit('.').next()?;
        Some(if is_all { last } else { path }.to_owned())
    };
    let paths: BTreeSet<_> = named(adapters).keys().filter_map(path).collect();
    paths.into_iter().collect()
}

/// Reads the options of a folder's adapters.
pub fn read_options(folder: &Path) -> Result<Lora> {
    let path = folder.join(OPTIONS);
    let read = || of_fields(&serde_json::from_str(&fs::read_to_string(&path)?)?);
    read().with_context(|| format!("cannot read {}", path.display()))
}

fn of_fields(fields: &Fields) -> Result<Lora> {
    let kind: String = fields.required("peft_type")?;
    ensure!(kind == "LORA", "`peft_type` is `{kind}`; must be `LORA`");
    let bias: String = fields.optional("bias")?.unwrap_or("none".to_owned());
    ensure!(bias == "none", "`bias` is `{bias}`; must be `none`");
    for name in UNSUPPORTED {
        if let Some(value) = fields.optional::<Value>(name)?.filter(is_set) {
            bail!("`{name}` is {value}, which is not supported")
        }
    }
    let init: Value = fields.optional("init_lora_weights")?.unwrap_or(true.into());
    ensure!(
        init.is_boolean() || KEEPING.iter().any(|name| init == *name),
        "`init_lora_weights` is {init}, supported are true, false, {}: others may change the model too",
        KEEPING.join(", ")
    );
    let targets = match fields.required("target_modules")? {
        Value::String(all) if all == ALL_LINEAR => vec![all],
        Value::String(pattern) => bail!(
            "`target_modules` is the pattern `{pattern}`, supported are a list of names and {ALL_LINEAR}"
        ),
        list => serde_json::from_value(list).context("`target_modules`")?,
    };
    let lora = Lora {
        rank: fields.required("r")?,
        alpha: fields.required("lora_alpha")?,
        targets,
        dropout: fields.optional("lora_dropout")?.unwrap_or(0.),
        rank_stabilized: fields.flag("use_rslora")?,
        dora: fields.flag("use_dora")?,
    };
    lora.check()?;
    Ok(lora)
}

/// Beginnings of an adapter that leave the model as it is. PEFT applies those that change it, such as PiSSA's, also where it loads.
const KEEPING: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// Options that change what an adapter computes.
const UNSUPPORTED: [&str; 13] = [
    "alpha_pattern",
    "exclude_modules",
    "fan_in_fan_out",
    "layer_replication",
    "layers_to_transform",
    "lora_bias",
    "modules_to_save",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_qalora",
    "alora_invocation_tokens",
];

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    }
}

/// Sets the adapters of a decoder that was made with `adapters` to those of a folder, cast to their type. If one is missing, has
/// another shape or belongs to no layer, the error names all of these, and no adapter is changed.
pub fn load_into(folder: &Path, adapters: &VarMap) -> Result<()> {
    let weights = Weights::open(&[folder.join(WEIGHTS)])?;
    fill(adapters, &weights, true)
        .with_context(|| format!("the adapters in {} do not fit", folder.display()))
}
