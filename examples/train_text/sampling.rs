//! Text drawn from the model.

use anyhow::Result;
use candle_core::{DType, Device, IndexOp, Tensor};
use candle_nn::ops;
use rand::Rng;
use rand::rngs::StdRng;

use crate::corpus::Corpus;
use crate::model::Transformer;

/// Continues the first bytes of the corpus with text drawn from the model.
pub fn sample(
    model: &Transformer,
    corpus: &Corpus,
    context: usize,
    device: &Device,
    rng: &mut StdRng,
) -> Result<String> {
    const LENGTH: usize = 160;
    const TEMPERATURE: f64 = 0.7;
    let mut text = corpus.text(0..context.min(16)).to_vec();
    let prompt = text.len();
    while text.len() < prompt + LENGTH {
        let seen = &text[text.len().saturating_sub(context)..];
        let bytes: Vec<u32> = seen.iter().map(|&byte| u32::from(byte)).collect();
        let bytes = Tensor::from_vec(bytes, (1, seen.len()), device)?;
        let scores = model.forward(&bytes)?.i((0, seen.len() - 1))?;
        let scores = scores.to_dtype(DType::F32)?;
        let chances = ops::softmax(&(scores / TEMPERATURE)?, 0)?.to_vec1::<f32>()?;
        text.push(draw(&chances, rng.random()));
    }
    Ok(format!(
        "{}▸{}",
        String::from_utf8_lossy(&text[..prompt]),
        String::from_utf8_lossy(&text[prompt..]),
    ))
}

fn draw(chances: &[f32], mut point: f32) -> u8 {
    for (byte, chance) in (0..=u8::MAX).zip(chances) {
        point -= chance;
        if point <= 0. {
            return byte;
        }
    }
    b' '
}
