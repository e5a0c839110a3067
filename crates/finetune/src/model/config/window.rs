use anyhow::{Result, bail};

use super::family::Family;
use super::fields::Fields;

/// The sliding window and the first layer that has it.
pub fn window(fields: &Fields, family: Family, layers: usize) -> Result<(Option<usize>, usize)> {
    let window = fields.optional("sliding_window")?;
    let (window, first) = match family {
        Family::Llama => (None, 0),
        Family::Mistral if fields.contains("sliding_window") => (window, 0),
        Family::Mistral => (Some(4096), 0),
        Family::Qwen2 | Family::Qwen3 if !fields.flag("use_sliding_window")? => (None, 0),
        Family::Qwen2 | Family::Qwen3 => (
            Some(window.unwrap_or(4096)),
            fields.optional("max_window_layers")?.unwrap_or(28),
        ),
    };
    let Some(types) = fields.optional::<Vec<String>>("layer_types")? else {
        return Ok((window, first));
    };
    if types.len() != layers {
        bail!(
            "`layer_types` has {} entries for {layers} layers",
            types.len()
        )
    }
    let Some(first) = types.iter().position(|kind| kind != "full_attention") else {
        return Ok((None, 0));
    };
    let others = types.iter().enumerate().skip(first);
    match others
        .into_iter()
        .find(|(_, kind)| *kind != "sliding_attention")
    {
        None => Ok((window, first)),
        Some((layer, kind)) => bail!(
            "`layer_types` has `{kind}` at {layer}, supported are layers of full_attention and then layers of sliding_attention"
        ),
    }
}
