use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::nn::{Attention, attention, seeded};

use crate::check::{
    Strides, agrees_on_rounding_each as agrees_on, difference, differentiate, numbers, rounding,
    same_bits,
};
use crate::gpu::gpu;
use crate::simulator::Simulator;

/// q, k and v for (batch, heads, key heads, queries, keys, width, value width).
fn inputs(sizes: [usize; 7]) -> [Tensor; 3] {
    let [batch, heads, key_heads, queries, keys, width, value_width] = sizes;
    [
        numbers(&[batch, heads, queries, width], 1),
        numbers(&[batch, key_heads, keys, width], 2),
        numbers(&[batch, key_heads, keys, value_width], 3),
    ]
}

/// Asserts that attention agrees with that on the CPU. `options` is given the queries.
fn compare(sizes: [usize; 7], options: &dyn Fn(&Tensor) -> Result<Attention>) -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    agrees_on(
        &device,
        &|x| {
            let options = options(&x[0])?;
            seeded(9, || attention(&x[0], &x[1], &x[2], &options))
        },
        &inputs(sizes),
    )
}

#[test]
fn all_options() -> Result<()> {
    let none = Attention::default;
    compare([1, 2, 2, 3, 4, 3, 3], &|_| Ok(none()))?;
    // A warp and a bit of keys; more than a block strides over.
    compare([2, 4, 2, 5, 37, 4, 3], &|_| {
        Ok(none().causal().softcap(1.5))
    })?;
    compare([1, 2, 1, 2, 300, 2, 2], &|_| {
        Ok(none().causal_from(250).dropout(0.3))
    })?;
    let slopes = Tensor::new(&[0.5f32, 0.25, 0.125, 0.0625], &Device::Cpu)?;
    for options in [none().window(9, 3), none().window(2, 300).causal()] {
        let options = options.alibi(&slopes).dropout(0.25);
        compare([2, 4, 2, 5, 37, 4, 3], &|_| Ok(options.clone()))?;
        let packed = options.clone().lengths(&[2, 0, 3], &[7, 3, 27]);
        compare([2, 4, 2, 5, 37, 4, 3], &|_| Ok(packed.clone()))?;
    }
    for shape in [&[2, 4, 3, 40][..], &[1, 4, 1, 40], &[3, 1], &[2, 1, 1, 40]] {
        compare([2, 4, 4, 3, 40, 3, 2], &|q| {
            let mask = ((numbers(shape, 5) * 4.)?.round()? / 4.)?;
            let mask = mask.to_dtype(q.dtype())?.to_device(q.device())?;
            Ok(none().mask(&mask).scale(0.7).dropout(0.25))
        })?;
    }
    Ok(())
}

/// Chunks have at most 1024 queries; the first ones see nothing.
#[test]
fn several_chunks() -> Result<()> {
    compare([1, 1, 1, 1030, 3, 1, 1], &|_| Ok(Attention::default()))?;
    compare([1, 1, 1, 1030, 3, 1, 1], &|_| {
        Ok(Attention::default().causal())
    })?;
    // Of two samples, and of two key heads that each two heads share.
    compare([2, 4, 2, 1030, 3, 1, 2], &|_| Ok(Attention::default()))
}

/// Parts of samples and of heads, and chunks of queries in them, down to one query.
#[test]
fn several_parts() -> Result<()> {
    let slopes = Tensor::new(&[0.01f32, 0.005, 0.0025, 0.00125], &Device::Cpu)?;
    let options = Attention::default().causal().alibi(&slopes).dropout(0.2);
    // Of f32 scores all take 280 KiB, those of a sample 140, of a key head 70, and of its query 3.5.
    for kib in [0, 4, 40, 70, 140, 280] {
        let options = options.clone().chunk(kib << 10);
        compare([2, 4, 2, 20, 112, 3, 3], &|_| Ok(options.clone()))?;
    }
    if Simulator::of(0).is_some() {
        // It takes minutes for as many scores as the chunks by default have.
        return Ok(());
    }
    compare([2, 4, 2, 1100, 9000, 8, 8], &|_| Ok(options.clone()))
}

#[test]
fn masks_with_a_gradient() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let [q, k, v] = inputs([2, 2, 1, 3, 5, 2, 2]);
    agrees_on(
        &device,
        &|x| {
            let options = Attention::default().causal().dropout(0.2).mask(&x[3]);
            seeded(1, || attention(&x[0], &x[1], &x[2], &options))
        },
        &[q, k, v, numbers(&[2, 1, 5], 6)],
    )
}

/// The second query sees all keys by a finite number. Coarse numbers make scores exact, whatever the order of sums.
#[test]
fn rows_hidden_by_a_finite_number() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    for number in [-1e4, -1e9, f32::MIN.into()] {
        let mut values = [0f64; 15];
        values[1..3].fill(number);
        values[5..10].fill(number);
        let mask = Tensor::new(&values, &Device::Cpu)?.reshape((3, 5))?;
        let coarse = |x: Tensor| (x * 4.)?.round()? / 4.;
        let inputs = inputs([1, 2, 1, 3, 5, 4, 4]).into_iter().map(coarse);
        let mut inputs = inputs.collect::<Result<Vec<_>>>()?;
        let run = |x: &[Tensor]| {
            let mask = x.get(3).unwrap_or(&mask).to_device(x[0].device())?;
            let options = Attention::default().mask(&mask.to_dtype(x[0].dtype())?);
            attention(&x[0], &x[1], &x[2], &options)
        };
        agrees_on(&device, &run, &inputs)?;
        inputs.push(mask.clone());
        agrees_on(&device, &run, &inputs)?;
        if number < -1e5 {
            let [q, k, v] = [0, 1, 2].map(|at: usize| {
                inputs[at]
                    .to_dtype(DType::F32)
                    .and_then(|x| x.to_device(&device))
            });
            let (q, k, v) = (q?, k?, v?);
            let y = run(&[q, k, v.clone()])?
                .narrow(2, 1, 1)?
                .to_device(&Device::Cpu)?;
            let mean = v
                .to_device(&Device::Cpu)?
                .mean_keepdim(2)?
                .broadcast_as(y.shape())?;
            let off = difference(&y.to_dtype(DType::F64)?, &mean.to_dtype(DType::F64)?);
            assert!(off < 1e-6, "{number:e}: {off:e} off");
        }
    }
    Ok(())
}

/// All scores are exact in f32 and about 4096, where numbers of f32 are 0.0005 apart. Scores of f16 and bf16 are not exact.
#[test]
fn large_scores() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let [q, k, v] = inputs([1, 2, 1, 3, 5, 15, 2]).map(|x| (x * 4.)?.round()? / 4.);
    let large = |x: Tensor| {
        let (batch, heads, rows, _) = x.dims4()?;
        let column = Tensor::full(128f64, (batch, heads, rows, 1), x.device())?;
        Tensor::cat(&[column, x], 3)
    };
    let inputs = [large(q?)?, large(k?)?, v?];
    for dtype in [DType::F32, DType::F64] {
        let typed = inputs.each_ref().map(|x| x.to_dtype(dtype));
        let [q, k, v] = typed;
        let typed = [q?, k?, v?];
        let there = typed.each_ref().map(|x| x.to_device(&device));
        let [q, k, v] = there;
        let there = [q?, k?, v?];
        let run = |x: &[Tensor]| attention(&x[0], &x[1], &x[2], &Attention::default());
        let (expected, plain) = differentiate(&run, &typed, Strides::Contiguous)?;
        let (output, gradients) = differentiate(&run, &there, Strides::Contiguous)?;
        let found = [vec![output], gradients].concat();
        for (found, plain) in found.iter().zip([vec![expected], plain].concat()) {
            let off = difference(&found.to_device(&Device::Cpu)?, &plain);
            // As on the CPU: exponents of scores of thousands have lost as many digits.
            assert!(off <= 30. * rounding(dtype), "{dtype:?}: {off:e} off");
        }
    }
    Ok(())
}

#[test]
fn queries_that_see_nothing_get_zeros() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        let vars = inputs([1, 2, 2, 2, 5, 3, 3])
            .map(|x| Var::from_tensor(&x.to_dtype(dtype)?.to_device(&device)?));
        let [q, k, v] = vars;
        let (q, k, v) = (q?, k?, v?);
        let mask = Tensor::new(&[[f32::NEG_INFINITY], [0.]], &device)?.to_dtype(dtype)?;
        let y = attention(&q, &k, &v, &Attention::default().mask(&mask))?;
        let store = y.sqr()?.sum_all()?.backward()?;
        let dq = store.get(&q).expect("a gradient");
        for blind in [&y, dq] {
            let blind = blind.narrow(2, 0, 1)?.to_device(&Device::Cpu)?;
            same_bits(&blind, &blind.zeros_like()?)?;
        }
    }
    Ok(())
}
