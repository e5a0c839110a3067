//! Files that are shuffled by blocks, against reading them in their order.

use std::cell::RefCell;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
#[cfg(feature = "parquet")]
use candle_core::Tensor;
use candle_headroom::data::{Dataset, Loader, Tensors, Tokens, stack_tokens};
use candle_headroom::error::BoxedError;

use crate::support::{Contender, alternate, figure, median};

const WORKERS: usize = 2;
const SAMPLES: usize = 64;

/// Blocks that are shuffled together.
const WINDOW: usize = 8;

/// The time of the processors that this process has used.
fn processor_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a value of this type, which lives until the call returns.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Reads so many batches in order and by blocks in turn, and prints the figure of a kind of file: how fast blocks are. The time of the processors
/// says the same where other programs use them.
fn versus<D: Dataset + 'static, B: Tensors + Send + 'static>(
    kind: &str,
    open: impl Fn() -> D,
    collate: impl Fn(Vec<D::Sample>) -> Result<B, BoxedError> + Copy + Send + Sync + 'static,
    (batches, rounds): (usize, usize),
) -> Result<()> {
    let builder = || {
        Loader::builder(open(), collate)
            .batch(SAMPLES)
            .workers(WORKERS)
            .endless()
    };
    let loaders = [
        ("in order", builder().build()?),
        ("by blocks", builder().shuffle(3).blocks(WINDOW).build()?),
    ];
    let used = RefCell::new([Vec::new(), Vec::new()]);
    let contenders = loaders
        .into_iter()
        .enumerate()
        .map(|(at, (name, mut loader))| {
            let used = &used;
            Contender::timing_itself(name, move || {
                let (began, before) = (Instant::now(), processor_time());
                for batch in loader.by_ref().take(batches) {
                    black_box(batch.expect("a batch"));
                }
                used.borrow_mut()[at].push((processor_time() - before).as_secs_f64());
                began.elapsed()
            })
        });
    let times = alternate(contenders.collect(), rounds);
    times.print(&format!("{SAMPLES} samples of {kind}, a batch:"), batches);
    let [in_order, by_blocks] = used.into_inner();
    let processors = median(
        in_order
            .iter()
            .zip(&by_blocks)
            .map(|(one, other)| one / other)
            .collect(),
    );
    println!("  by the time of the processors {processors:.3} x");
    let ratio = times.ratio("in order", "by blocks");
    figure(
        &format!("data/{kind}_block_shuffle_vs_sequential"),
        ratio,
        "x",
    );
    Ok(())
}

pub fn compare(is_quick: bool) -> Result<()> {
    let folder = tempfile::tempdir()?;
    tokens(folder.path(), is_quick)?;
    parquet(folder.path(), is_quick)
}

/// Windows of 1,025 tokens of a file in the page cache, in blocks of 1,024 windows.
fn tokens(folder: &Path, is_quick: bool) -> Result<()> {
    let (bytes, rounds) = if is_quick {
        (1 << 28, 41)
    } else {
        (1 << 30, 101)
    };
    let path = folder.join("tokens.bin");
    crate::tokens::write(&path, bytes)?;
    let open = || {
        let tokens = Tokens::builder([&path]).window(1_025).stride(1_024);
        Arc::new(tokens.open().expect("tokens"))
    };
    versus("tokens", open, stack_tokens, (512, rounds))?;
    std::fs::remove_file(path)?;
    Ok(())
}

#[cfg(not(feature = "parquet"))]
fn parquet(_: &Path, _: bool) -> Result<()> {
    Ok(())
}

/// Rows of a text of about 500 bytes and a number, in row groups of 4,096, compressed with Snappy.
#[cfg(feature = "parquet")]
fn parquet(folder: &Path, is_quick: bool) -> Result<()> {
    use candle_core::Device;
    use candle_headroom::ByteSize;
    use candle_headroom::data::ParquetDataset;

    let (groups, rounds) = if is_quick { (48, 9) } else { (192, 25) };
    let path = folder.join("rows.parquet");
    write(&path, groups)?;
    // Room for two windows, and not for the file.
    let builder = || ParquetDataset::<(String, i64)>::builder([&path]).cache(ByteSize::mib(64));
    let open = || builder().open().expect("rows");
    let collate = |rows: Vec<(String, i64)>| -> Result<Tensor, BoxedError> {
        let numbers: Vec<_> = rows
            .iter()
            .map(|(text, number)| text.len() as i64 + number)
            .collect();
        Ok(Tensor::new(numbers, &Device::Cpu)?)
    };
    // As many as a window has.
    versus("parquet", open, collate, (512, rounds))
}

#[cfg(feature = "parquet")]
fn write(path: &Path, groups: usize) -> Result<()> {
    use std::fs::File;

    use parquet::basic::Compression;
    use parquet::data_type::{ByteArrayType, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    let schema =
        parse_message_type("message m { required binary text (UTF8); required int64 number; }")?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .build();
    let mut file =
        SerializedFileWriter::new(File::create(path)?, schema.into(), properties.into())?;
    let mut random = StdRng::seed_from_u64(33);
    for _ in 0..groups {
        let texts = (0..4_096).map(|_| {
            let words =
                (0..random.random_range(40..160)).map(|_| format!("{:x} ", random.random::<u16>()));
            words.collect::<String>().as_str().into()
        });
        let texts: Vec<_> = texts.collect();
        let numbers: Vec<i64> = (0..4_096).collect();
        let mut group = file.next_row_group()?;
        let mut column = group.next_column()?.expect("a column");
        column
            .typed::<ByteArrayType>()
            .write_batch(&texts, None, None)?;
        column.close()?;
        let mut column = group.next_column()?.expect("a column");
        column
            .typed::<Int64Type>()
            .write_batch(&numbers, None, None)?;
        column.close()?;
        group.close()?;
    }
    file.close()?;
    Ok(())
}
