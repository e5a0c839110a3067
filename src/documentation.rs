//! The book: a tutorial, how-to guides, tables and explanations. `mdbook build` makes a book of the same pages.
//!
//! - [`tutorial`]: [your first run](tutorial::first_run), from `cargo new` to a page in the browser.
//! - [`how_to`]: one problem on each page, by what you see. [Stop dying from out-of-memory](how_to::cuda_out_of_memory) comes first.
//! - [`mod@reference`]: tables. The API is documented where it is.
//! - [`explanation`]: how and why; [what is promised](reference::promises), and [limits](explanation::limits).
//! - [`changelog`]: what changed.

// Links between pages use labels: the page's path and, after `#`, the heading. Each page defines those that it uses at its end, for
// readers of the repository and of the book. Markdown takes the first definition of a label, so rustdoc takes those of links.md.
// A test (tests/programs/pages) compares them. Pictures and their captions are hidden: rustdoc copies no files.
macro_rules! pages {
    ($($(#[$about:meta])* $kind:ident $folder:literal { $($(#[$when:meta])* $name:ident $file:literal)* })*) => {$(
        $(#[$about])*
        pub mod $kind {$(
            $(#[$when])*
            #[doc = include_str!("documentation/links.md")]
            #[doc = include_str!(concat!("../docs/", $folder, "/", $file, ".md"))]
            #[doc = "\n<style>picture, picture + p { display: none }</style>"]
            pub mod $name {}
        )*}
    )*};
}

pages! {
    /// Start here.
    tutorial "tutorial" {
        first_run "first-run"
        real_run "real-run"
    }

    /// One problem on each page, which begins with what you see.
    how_to "how-to" {
        #[cfg(any(feature = "testing", not(doctest)))] // its program needs the feature
        will_it_fit "will-it-fit"
        cuda_out_of_memory "cuda-out-of-memory"
        memory_growth_and_limits "memory-growth-and-limits"
        batch_size "batch-size"
        batch_policy "batch-policy"
        gradient_accumulation "gradient-accumulation"
        gradient_checkpointing "gradient-checkpointing"
        one_sample "one-sample"
        large_vocabulary "large-vocabulary"
        optimizer_memory "optimizer-memory"
        #[cfg(any(feature = "layers", not(doctest)))] // its programs need the feature
        which_layer "which-layer"
        share_a_gpu "share-a-gpu"
        test_out_of_memory "test-out-of-memory"
        candle_transformers "candle-transformers"
        fine_tune "fine-tune"
        lora "lora"
        #[cfg(any(feature = "image", not(doctest)))] // its programs need the feature
        image_folder "image-folder"
        mixed_precision "mixed-precision"
        optimizers "optimizers"
        batches "batches"
        other_loops "other-loops"
        evaluate "evaluate"
        feed_the_gpu "feed-the-gpu"
        large_data "large-data"
        #[cfg(any(feature = "object-store", not(doctest)))] // its program needs the feature
        object_stores "object-stores"
        resume_after_preemption "resume-after-preemption"
        from_tensorflow "from-tensorflow"
        from_pytorch "from-pytorch"
        several_gpus_and_slurm "several-gpus-and-slurm"
        faster_ranks "faster-ranks"
        check_a_machine "check-a-machine"
        watch_a_run "watch-a-run"
        incidents "incidents"
    }

    /// Tables.
    reference "reference" {
        promises "promises"
        errors "errors"
        environment_codes "environment-codes"
        command_line "command-line"
        features "features"
        ranks "ranks"
        rank_errors "rank-errors"
        checkpoints "checkpoints"
        models "models"
        ports "ports"
        fine_tune_compatibility "fine-tune-compatibility"
        upstream "upstream"
        comparison "comparison"
        gpu "gpu"
        cuda_counts "cuda-counts"
        dry_runs "dry-runs"
        figures "figures"
    }

    /// How it works, and why.
    explanation "explanation" {
        sizes "sizes"
        layers "layers"
        optimizers "optimizers"
        cuda_memory "cuda-memory"
        cuda_steps "cuda-steps"
        checker "checker"
        limits "limits"
    }
}

#[doc = include_str!("../CHANGELOG.md")]
pub mod changelog {}
