//! Guides: the documents of the repository, in the order in which to read them.
//!
//! - [`guide`]: train, evaluate and infer with a limit, step by step.
//! - [`trainable`]: make a candle-transformers model trainable.
//! - [`layers`]: what a layer keeps for the backward pass.
//! - [`semantics`]: what is promised, and the tests that prove it.
//! - [`fit`]: when one sample does not fit.
//! - [`feed_the_gpu`]: samples from files to the device, without waiting.
//! - [`optimizers`]: the fused optimizers, their state, and what "all or none" means.
//! - [`save_and_resume`]: checkpoints, exact resume, signals, fine-tuning.
//! - [`fit_lora`]: train small matrices beside a frozen model.
//! - [`several_gpus`]: from one GPU to many, on one machine or on several.
//! - [`cuda`]: memory pools, limits and recovery on NVIDIA GPUs.
//! - [`environment`]: is this machine fit for CUDA, and what to do if not.
//! - [`watching`]: pages, monitors, incident logs, error reports.
//! - [`testing`]: test your own code against out-of-memory.
//! - [`from_tensorflow`]: what TensorFlow users do about memory, and what to write here.
//! - [`benchmarks`]: the figures and how they were measured.
//! - [`changelog`]: what changed.

/// Targets of the links between the documents. Each file defines the same labels at its end for readers of the repository;
/// Markdown takes the first definition of a label, so rustdoc takes these.
macro_rules! links {
    () => {
        "[guide]: crate::_documentation::guide
[guide: host limit]: crate::_documentation::guide#a-limit-on-host-memory
[guide: sizes]: crate::_documentation::guide#samples-of-different-sizes
[trainable]: crate::_documentation::trainable
[layers]: crate::_documentation::layers
[layers: loss]: crate::_documentation::layers#a-loss-without-logits
[semantics]: crate::_documentation::semantics
[semantics: recomputation]: crate::_documentation::semantics#recomputation
[semantics: atomic step]: crate::_documentation::semantics#1-atomic-step-atomic_step
[semantics: ranks]: crate::_documentation::semantics#13-ranks-agree-ranks_agree
[several gpus]: crate::_documentation::several_gpus
[several gpus: test]: crate::_documentation::several_gpus#test-it-without-a-launcher
[guide: sums]: crate::_documentation::guide#losses-that-are-not-means-over-samples
[fit]: crate::_documentation::fit
[fit: error]: crate::_documentation::fit#what-the-error-says
[fit: lora]: crate::_documentation::fit_lora
[feed the gpu]: crate::_documentation::feed_the_gpu
[save and resume]: crate::_documentation::save_and_resume
[save and resume: ranks]: crate::_documentation::save_and_resume#several-ranks
[save and resume: signals]: crate::_documentation::save_and_resume#signals
[optimizers]: crate::_documentation::optimizers
[optimizers: 8 bits]: crate::_documentation::optimizers#moments-of-8-bits
[optimizers: bf16]: crate::_documentation::optimizers#bf16
[optimizers: on the host]: crate::_documentation::optimizers#moments-on-the-host
[cuda]: crate::_documentation::cuda
[cuda: open questions]: crate::_documentation::cuda#open-questions-for-a-real-gpu
[environment]: crate::_documentation::environment
[environment: ranks]: crate::_documentation::environment#several-ranks
[environment: others]: crate::_documentation::environment#what-others-report
[watching]: crate::_documentation::watching
[watching: ranks]: crate::_documentation::watching#several-ranks
[watching: monitor]: crate::_documentation::watching#the-gpu-and-the-host
[watching: incidents]: crate::_documentation::watching#what-went-wrong
[watching: page]: crate::_documentation::watching#a-page-of-the-run
[testing]: crate::_documentation::testing
[from-tensorflow]: crate::_documentation::from_tensorflow
[benchmarks]: crate::_documentation::benchmarks
[benchmarks: scale]: crate::_documentation::benchmarks#scale
[benchmarks: fit]: crate::_documentation::benchmarks#what-does-not-fit
[benchmarks: optimizers]: crate::_documentation::benchmarks#optimizers
[benchmarks: page faults]: crate::_documentation::benchmarks#glibc-and-page-faults
"
    };
}

macro_rules! guides {
    ($($name:ident $file:literal)*) => {$(
        #[doc = links!()]
        #[doc = include_str!(concat!("../docs/", $file))]
        pub mod $name {}
    )*};
}

guides! {
    guide "guide.md"
    trainable "trainable.md"
    layers "layers.md"
    semantics "semantics.md"
    fit "fit.md"
    feed_the_gpu "feed-the-gpu.md"
    optimizers "optimizers.md"
    fit_lora "fit-lora.md"
    save_and_resume "save-and-resume.md"
    several_gpus "several-gpus.md"
    cuda "cuda.md"
    environment "environment.md"
    watching "watching.md"
    testing "testing.md"
    from_tensorflow "from-tensorflow.md"
    benchmarks "benchmarks.md"
}

#[doc = include_str!("../CHANGELOG.md")]
pub mod changelog {}

/// The README's snippet, run as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
