//! Trains a small language model on a file of tokens, with the loss on text that it has not seen.
//! Run: `cargo run --example text -- FILE`; without FILE it reads CHANGELOG.md. Bytes are tokens.
//! Prints the loss of the last batch and the validation loss after each epoch.

use candle_core::{DType, Device, Tensor};
use candle_headroom::data::{Check, Loader, TokenType, Tokens, stack_tokens};
use candle_headroom::nn::{Activation, Module, VarBuilder, VarMap};
use candle_headroom::nn::{conv1d, embedding, linear, loss, seq};
use candle_headroom::{AdamW, AdaptiveTrainer};

const CONTEXT: usize = 64;

fn main() -> anyhow::Result<()> {
    let file = std::env::args().nth(1);
    let text = std::fs::read(file.unwrap_or("CHANGELOG.md".to_owned()))?;
    let folder = tempfile::tempdir()?;
    let open = |name: &str, tokens: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, tokens)?; // a tokenizer writes U16 or U32
        // A window has one token more than the context, because it holds the next tokens too.
        let tokens = Tokens::builder([path]).dtype(TokenType::U8);
        anyhow::Ok(tokens.window(CONTEXT + 1).stride(CONTEXT).open()?)
    };
    let (train, validation) = text.split_at(text.len() / 10 * 9);
    let (train, validation) = (open("train.bin", train)?, open("val.bin", validation)?);

    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let model = seq()
        .add(embedding(256, 32, vb.pp("tokens"))?) // [samples, tokens, 32]
        .add_fn(|x| x.transpose(1, 2)?.contiguous()?.pad_with_zeros(2, 7, 0))
        .add(conv1d(32, 128, 8, Default::default(), vb.pp("conv"))?) // of a token and 7 before it
        .add(Activation::Gelu)
        .add_fn(|x| x.transpose(1, 2))
        .add(linear(128, 256, vb.pp("head"))?);
    let loss = |tokens: &Tensor| {
        let logits = model
            .forward(&tokens.narrow(1, 0, CONTEXT)?)?
            .flatten_to(1)?;
        loss::cross_entropy(&logits, &tokens.narrow(1, 1, CONTEXT)?.flatten_all()?)
    };
    let optimizer = AdamW::builder(&varmap).learning_rate(5e-3).build()?;
    let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;

    let check = Check::new("tokens").range(0..256); // an error that names the sample
    let loader = Loader::builder(train, stack_tokens).batch(16).shuffle(7);
    let mut loader = loader.check(check).epochs(5).build()?;
    for epoch in loader.epochs() {
        let (number, mut last) = (epoch.number(), 0.);
        for batch in epoch {
            last = trainer.step(batch, |tokens, _| loss(&tokens))?.loss()?;
        }
        let held_out = Loader::builder(validation.clone(), stack_tokens).batch(16);
        let mean = trainer.evaluate_loss(held_out.build()?, |tokens, _| loss(&tokens))?;
        println!("epoch {number}: loss {last:.3}, validation loss {mean:.3}");
    }
    Ok(())
}
