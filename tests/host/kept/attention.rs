use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::DeviceMemory;
use candle_headroom::nn::attention::{AttnMask, flash_attn};
use candle_headroom::nn::{Attention, attention, ops};

use super::{assert_kept, var};
use crate::support::alone;

/// A view of (batch, positions, heads, width) as (batch, heads, positions, width), and its bytes.
fn heads(shape: [usize; 4]) -> Result<(Tensor, usize)> {
    let (var, bytes) = var(&shape)?;
    Ok((var.transpose(1, 2)?, bytes))
}

#[test]
fn attention_keeps_its_output_and_two_numbers_for_each_row() -> Result<()> {
    let _alone = alone();
    let (q, bytes) = heads([2, 4096, 8, 4])?;
    let (k, _) = heads([2, 64, 4, 4])?;
    let (v, _) = heads([2, 64, 4, 4])?;
    let statistics = 2 * 8 * 4096 * 2 * 4;
    let options = Attention::default().causal_from(5).dropout(0.1);
    assert_kept("attention", bytes + statistics, || {
        attention(&q, &k, &v, &options)
    });
    let slopes = Tensor::ones(8, DType::F32, &Device::Cpu)?;
    let windowed = options.clone().window(9, 3).alibi(&slopes);
    assert_kept("with a window and slopes", bytes + statistics, || {
        attention(&q, &k, &v, &windowed)
    });
    assert_kept("sdpa", bytes + statistics, || {
        ops::sdpa(&q, &k, &v, None, true, 0.5, 1.)
    });
    let [q, k, v] = [q, k, v].map(|x| x.to_dtype(DType::BF16));
    let (q, k, v) = (q?, k?, v?);
    // One sample, of which candle's kernels return f32.
    let first = |x: &Tensor| x.narrow(0, 0, 1)?.transpose(1, 2);
    let (of_q, of_k, of_v) = (first(&q)?, first(&k)?, first(&v)?);
    let expected = bytes / 4 + statistics / 2;
    assert_kept("flash_attn in bf16", expected, || {
        flash_attn::<f32>(&of_q, &of_k, &of_v, 0.5, AttnMask::None, None, None)
    });
    assert_kept("attention in bf16", bytes / 2 + statistics, || {
        attention(&q, &k, &v, &options)
    });
    Ok(())
}

#[test]
fn masks_are_kept_once() -> Result<()> {
    let _alone = alone();
    let (q, bytes) = heads([2, 4096, 8, 4])?;
    let (k, _) = heads([2, 64, 8, 4])?;
    let (v, _) = var(&[2, 8, 64, 4])?;
    let statistics = 2 * 8 * 4096 * 2 * 4;
    let mask = Tensor::zeros((4096, 64), DType::F32, &Device::Cpu)?;
    let wide = mask.broadcast_as((2, 8, 4096, 64))?;
    for mask in [&mask, &wide] {
        let options = Attention::default().mask(mask);
        assert_kept("with a mask", bytes + statistics, || {
            attention(&q, &k, &v, &options)
        });
    }
    let (mask, _) = var(&[4096, 64])?;
    let options = Attention::default().mask(&mask);
    assert_kept("with a learned mask", bytes + statistics, || {
        attention(&q, &k, &v, &options)
    });
    Ok(())
}

#[test]
fn a_step_has_no_matrix_of_scores() -> Result<()> {
    let _alone = alone();
    let memory = DeviceMemory::host()
        .open()
        .expect("an allocator that counts");
    let [q, k, v] = [1, 2, 3].map(|_| Var::randn(0f32, 1., (1, 2, 2048, 8), &Device::Cpu));
    let (q, k, v) = (q?, k?, v?);
    // Each thread has a tile of its own, so a fixed number of them bounds the sum on every machine. They are joined below, since what is
    // local to them would otherwise be freed within the next test.
    let mut handles = Vec::new();
    let threads = rayon::ThreadPoolBuilder::new().num_threads(2);
    let threads = threads.spawn_handler(|thread| {
        handles.push(std::thread::spawn(|| thread.run()));
        Ok(())
    });
    let threads = threads.build().expect("two threads");
    let scope = memory.peak_scope();
    let gradients = threads.install(|| {
        let y = attention(&q, &k, &v, &Attention::default().causal())?;
        y.sqr()?.sum_all()?.backward()
    })?;
    let (start, peak) = (scope.start().expect("bytes"), scope.peak().expect("bytes"));
    // Tiles of half a MiB for each of the threads, products packed for the cache, and some dozen tensors as large as q, of 128 KiB: about 5
    // MiB. A matrix of scores takes 32, that of one head 16.
    assert!(peak - start < 12 << 20, "{} bytes", peak - start);
    assert!(gradients.get(&q).is_some());
    drop(threads);
    for handle in handles {
        handle.join().expect("the end of a thread");
    }
    Ok(())
}
