//! Text drawn from the model.

use anyhow::Result;
use candle_core::{DType, Tensor};
use candle_nn::ops;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::arguments::Arguments;
use crate::data::Sample;
use crate::vocabulary::Vocabulary;
use headroom_finetune::model::Decoder;

/// Most tokens of a held-out text that are continued.
const BEGINNING: usize = 16;

/// The tokens to continue: those of `--prompt`, or the beginning of a sample.
pub fn prompt(arguments: &Arguments, vocabulary: &Vocabulary, sample: &Sample) -> Result<Vec<u32>> {
    let Some(prompt) = &arguments.sampling.prompt else {
        let given = match sample.given {
            1 => BEGINNING.min(sample.tokens.len() - 1),
            given => given,
        };
        return Ok(sample.tokens[..given].to_vec());
    };
    let mut tokens = vocabulary.begin().to_vec();
    tokens.extend(vocabulary.encode(prompt)?);
    Ok(tokens)
}

/// Continues a prompt, and returns both as text.
pub fn sample(
    decoder: &Decoder,
    vocabulary: &Vocabulary,
    prompt: &[u32],
    arguments: &Arguments,
) -> Result<String> {
    let options = &arguments.sampling;
    let mut rng = StdRng::seed_from_u64(!arguments.training.seed);
    let mut draw = |logits: &Tensor| match options.temperature {
        0. => logits.argmax(0)?.to_scalar::<u32>(),
        temperature => {
            let logits = (logits.to_dtype(DType::F32)? / temperature)?;
            let chances = ops::softmax(&logits, 0)?.to_vec1::<f32>()?;
            Ok(pick(&chances, rng.random()))
        }
    };
    let made = decoder.generate(prompt, options.sample, &mut draw, |token| {
        vocabulary.is_end(token)
    })?;
    let [given, made] = [vocabulary.decode(prompt)?, vocabulary.decode(&made)?];
    Ok(format!("{given}▸{}", made.trim()))
}

fn pick(chances: &[f32], mut point: f32) -> u32 {
    for (token, chance) in (0..).zip(chances) {
        point -= chance;
        if point <= 0. {
            return token;
        }
    }
    chances.len().saturating_sub(1) as u32
}
