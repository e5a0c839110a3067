//! `nn::recompute_tiled`: the peak of a perceptron over a long context, and the gradients of the whole.

use candle_core::{Device, Result, Tensor, Var};
use candle_headroom::DeviceMemory;
use candle_headroom::nn::{Offload, ops, recompute, recompute_tiled};

use crate::gpu::{MIB, simulated};
use crate::support::flat;

const ORDINAL: usize = 6;
const TOKENS: usize = 2048;
const WIDTH: usize = 8;
const INNER: usize = 256;
/// Bytes of an inner activation of all tokens: 2 MiB.
const WHOLE: u64 = (TOKENS * INNER * 4) as u64;

#[test]
fn nothing_of_all_tokens_and_the_inner_width_exists() {
    let Some((_gpu, simulator)) = simulated(ORDINAL) else {
        return;
    };
    let memory = DeviceMemory::cuda(ORDINAL).open().unwrap();
    let var = |shape: &[usize], factor: f32| -> Result<Var> {
        let count = shape.iter().product::<usize>() as u32;
        let values = (0..count).map(|i| ((i * 7919) % 1013) as f32 / 1013. - 0.5);
        let values = Tensor::from_iter(values.map(|value| value * factor), &Device::Cpu)?;
        Var::from_tensor(&values.reshape(shape)?.to_device(memory.device())?)
    };
    let [gate, up] = [1., 0.7].map(|factor| var(&[WIDTH, INNER], factor).unwrap());
    let down = var(&[INNER, WIDTH], 0.3).unwrap();
    let x = var(&[2, TOKENS / 2, WIDTH], 2.).unwrap();
    let vars = [x.clone(), gate.clone(), up.clone(), down.clone()];
    let mlp = move |x: &Tensor| {
        let inner = ops::silu_mul(&x.matmul(&gate)?, &x.matmul(&up)?)?;
        inner.matmul(&down)
    };
    let offload = Offload::new(MIB);
    // The loss, the gradients, and the peak beside the parameters.
    let run = |tokens: Option<usize>, nested: bool| {
        memory.device().synchronize().unwrap();
        simulator.reset_counters();
        let before = simulator.counters().live_bytes;
        let mlp = mlp.clone();
        let forward = move |x: &Tensor| match tokens {
            Some(tokens) => recompute_tiled(x, tokens, mlp.clone()),
            None => mlp(&x.flatten(0, 1)?)?.reshape(x.shape()),
        };
        let x = vars[0].as_tensor();
        let loss = offload.within(|| match nested {
            true => recompute(&recompute(x, |x| x * 1.)?, forward)?
                .sqr()?
                .mean_all(),
            false => forward(x)?.sqr()?.mean_all(),
        });
        let gradients = loss.as_ref().unwrap().backward().unwrap();
        let peak = simulator.counters().peak_live_bytes - before;
        let found = vars
            .iter()
            .flat_map(|var| flat(gradients.get(var).unwrap()));
        (found.collect::<Vec<_>>(), peak)
    };
    let (expected, plain) = run(None, false);
    assert!(plain > 3 * WHOLE, "{plain}");
    for (tokens, nested) in [(128, false), (100, true)] {
        let (found, peak) = run(Some(tokens), nested);
        let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        let largest = expected
            .iter()
            .fold(0., |most: f64, value| most.max(value.abs()));
        let off = off.fold(0., f64::max) / largest;
        assert!(off < 1e-5, "{off}");
        assert!(peak < WHOLE, "{peak} bytes with tiles of {tokens}");
    }
    assert_eq!(simulator.counters().hazards, 0);
}
