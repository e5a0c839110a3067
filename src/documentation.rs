//! The book: a tutorial, how-to guides, tables and explanations. `mdbook build` makes a book of the same pages.
//!
//! - [`tutorial`]: [your first run](tutorial::first_run), from `cargo new` to a page in the browser.
//! - [`how_to`]: one problem on each page, by what you see. [Stop dying from out-of-memory](how_to::out_of_memory) comes first.
//! - [`mod@reference`]: tables. The API is documented where it is.
//! - [`explanation`]: how and why; [what is promised](explanation::promises), and [limits](explanation::limits).
//! - [`changelog`]: what changed.

// Links between pages use labels: the page's path and, after `#`, the heading. Each page defines those that it uses at its end, for
// readers of the repository and of the book. Markdown takes the first definition of a label, so rustdoc takes those of links.md.
// A test (tests/programs/pages) compares them.
macro_rules! pages {
    ($($(#[$about:meta])* $kind:ident $folder:literal { $($(#[$when:meta])* $name:ident $file:literal)* })*) => {$(
        $(#[$about])*
        pub mod $kind {$(
            $(#[$when])*
            #[doc = include_str!("documentation/links.md")]
            #[doc = include_str!(concat!("../docs/", $folder, "/", $file, ".md"))]
            pub mod $name {}
        )*}
    )*};
}

pages! {
    /// Start here.
    tutorial "tutorial" {
        first_run "first-run"
    }

    /// One problem on each page, which begins with what you see.
    how_to "how-to" {
        out_of_memory "out-of-memory"
        host_memory "host-memory"
        one_sample "one-sample"
        recompute "recompute"
        large_vocabulary "large-vocabulary"
        optimizer_memory "optimizer-memory"
        #[cfg(any(feature = "layers", not(doctest)))] // its programs need the feature
        which_layer "which-layer"
        share_a_gpu "share-a-gpu"
        batch_size "batch-size"
        errors "errors"
        test_out_of_memory "test-out-of-memory"
        accumulate "accumulate"
        batches "batches"
        evaluate "evaluate"
        trainable "trainable"
        lora "lora"
        fine_tune "fine-tune"
        fine_tune_compatibility "fine-tune-compatibility"
        train_images "train-images"
        optimizers "optimizers"
        nan "nan"
        feed_the_gpu "feed-the-gpu"
        save_and_resume "save-and-resume"
        several_gpus "several-gpus"
        start_ranks "start-ranks"
        faster_ranks "faster-ranks"
        lost_ranks "lost-ranks"
        save_on_ranks "save-on-ranks"
        watch_ranks "watch-ranks"
        check_a_machine "check-a-machine"
        watch_a_run "watch-a-run"
        incidents "incidents"
        command_line "command-line"
    }

    /// Tables.
    reference "reference" {
        environment_codes "environment-codes"
        optimizers "optimizers"
        models "models"
        upstream "upstream"
        upstream_outputs "upstream-outputs"
        from_tensorflow "from-tensorflow"
        benchmarks "benchmarks"
        benchmarks_fit "benchmarks-fit"
        benchmarks_ranks "benchmarks-ranks"
    }

    /// How it works, and why.
    explanation "explanation" {
        promises "promises"
        sizes "sizes"
        layers "layers"
        optimizers "optimizers"
        cuda_memory "cuda-memory"
        checker "checker"
        limits "limits"
    }
}

#[doc = include_str!("../CHANGELOG.md")]
pub mod changelog {}

/// The README's snippet, run as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
