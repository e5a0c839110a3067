//! Trains a convolutional net on FOLDER/train/CLASS/*.png or jpg, tested on FOLDER/validation.
//! Run: `cargo run --features image --example image_folder -- FOLDER`; without FOLDER it makes one.
//! Prints the loss of each step and the accuracy on other images; saves FOLDER/model.safetensors.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device};
use candle_headroom::data::{ImageFolder, Loader, stack_images};
use candle_headroom::nn as candle_nn; // layers that hold less memory
use candle_headroom::{AdamW, AdaptiveTrainer};
use candle_nn::{Activation, Module, VarBuilder, VarMap, conv2d, linear, loss, seq};
use image::{Rgb, RgbImage};

fn make_stripes(folder: &Path) -> anyhow::Result<PathBuf> {
    for i in 0..96 {
        let set = if i < 64 { "train" } else { "validation" };
        let path = folder.join(set).join(["across", "down"][i % 2]);
        std::fs::create_dir_all(&path)?;
        let place = |x: u32, y: u32| [y, x][i % 2] as usize + i / 2;
        let pixel = |x, y| Rgb([(place(x, y) / 2 % 2 * 200) as u8; 3]);
        let image = RgbImage::from_fn(16, 16, pixel);
        image.save(path.join(format!("{i}.png")))?;
    }
    Ok(folder.to_owned())
}

fn main() -> anyhow::Result<()> {
    let temporary = tempfile::tempdir()?;
    let given = std::env::args().nth(1).map(PathBuf::from);
    let folder = given.map_or_else(|| make_stripes(temporary.path()), Ok)?;
    let open = |set: &str| ImageFolder::builder(folder.join(set)).size(16, 16).open();
    let (train, validation) = (open("train")?, open("validation")?);

    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let net = seq()
        // The loader gives u8 [images, height, width, 3]. Casting here casts a micro-batch only.
        .add_fn(|x| x.permute((0, 3, 1, 2))?.to_dtype(DType::F32)? / 255.)
        .add(conv2d(3, 16, 3, Default::default(), vb.pp("conv"))?)
        .add(Activation::Relu)
        .add_fn(|x| x.mean((2, 3))) // [images, 16]
        .add(linear(16, train.classes().len(), vb.pp("head"))?);
    let optimizer = AdamW::builder(&varmap).learning_rate(3e-2).build()?;
    let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    let loader = Loader::builder(train, stack_images).batch(16).shuffle(7);
    for batch in loader.epochs(8).workers(2).build()? {
        let report = trainer.step(batch, |(x, y), _| {
            loss::cross_entropy(&net.forward(&x)?, &y)
        })?;
        println!("{report}");
    }
    let held_out = Loader::builder(validation, stack_images).batch(16);
    let accuracy = trainer.evaluate_loss(held_out.build()?, |(x, y), _| {
        let is_right = net.forward(&x)?.argmax(1)?.eq(&y)?;
        is_right.to_dtype(DType::F32)?.mean_all() // 1 for a right answer, 0 for a wrong one
    })?;
    println!("validation accuracy {:.0} %", 100. * accuracy);
    varmap.save(folder.join("model.safetensors"))?;
    Ok(())
}
