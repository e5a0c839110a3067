//! Tests: small kernels written here, and candle's own.

mod candle;
mod candle_decoding;
mod candle_neural;
mod control;
mod conversions;
mod numbers;
mod speed;

use super::{Fault, Kernel, Launch, Memory, Module};
use std::ops::Range;
use std::sync::Arc;

/// Buffers that a kernel may access.
#[derive(Default)]
pub struct Host {
    ranges: Vec<Range<u64>>,
}

impl Memory for Host {
    fn allocation(&self, address: u64) -> Option<Range<u64>> {
        self.ranges
            .iter()
            .find(|range| range.contains(&address))
            .cloned()
    }
}

/// The arguments of a launch, laid out as they are added.
#[derive(Default)]
pub struct Arguments {
    bytes: Vec<u8>,
    host: Host,
}

impl Arguments {
    /// Adds a value, aligned to its size.
    pub fn value<T: Copy>(mut self, value: T) -> Self {
        self.bytes
            .resize(self.bytes.len().next_multiple_of(size_of::<T>()), 0);
        // SAFETY: the tests pass plain numbers, which have no padding.
        let bytes =
            unsafe { std::slice::from_raw_parts((&raw const value).cast::<u8>(), size_of::<T>()) };
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Adds a pointer to a buffer, which the kernel may access.
    pub fn buffer<T>(mut self, buffer: &mut [T]) -> Self {
        let start = buffer.as_mut_ptr() as u64;
        self.host
            .ranges
            .push(start..start + size_of_val(buffer) as u64);
        self.value(start)
    }

    /// Launches this many blocks of this many threads.
    pub fn launch(self, kernel: &Kernel, blocks: u32, threads: u32) -> Result<(), Fault> {
        self.launch_shaped(kernel, [blocks, 1, 1], [threads, 1, 1], 0)
    }

    /// Launches a grid.
    pub fn launch_shaped(
        self,
        kernel: &Kernel,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared: u32,
    ) -> Result<(), Fault> {
        kernel.launch(
            &Launch {
                grid,
                block,
                dynamic_shared,
            },
            &self.bytes,
            &self.host,
        )
    }

    /// Launches as candle does for this many elements.
    pub fn launch_for(self, kernel: &Kernel, elements: usize) {
        let blocks = elements.div_ceil(1024) as u32;
        self.launch(kernel, blocks, 1024)
            .unwrap_or_else(|fault| panic!("{}: {fault}", kernel.name()));
    }
}

/// The kernel `k` of a module with this body and pointer parameters `p0`, `p1`, ….
pub fn build(params: usize, body: &str) -> Result<Arc<Kernel>, String> {
    let params: Vec<String> = (0..params)
        .map(|index| format!(".param .u64 p{index}"))
        .collect();
    let registers = ".reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<19>; .reg .b64 %d<9>; .reg .f32 %f<9>; .reg .f64 %g<9>;";
    let text = format!(
        ".version 9.0\n.target sm_90\n.visible .entry k({}) {{ {registers} {body} }}",
        params.join(",")
    );
    Ok(Module::parse(&text)?.kernel("k")?.ok_or("no kernel")?)
}

/// Runs `body` in one warp on up to three columns of inputs. Lane *i* finds its inputs in `%d1`, `%d2` and `%d3` and puts
/// its result into `%d0`, all as 64 bits.
pub fn compute<const N: usize>(body: &str, inputs: &[[u64; N]]) -> Vec<u64> {
    let mut columns: Vec<u64> = Vec::new();
    let row = |index: usize| inputs.get(index).map_or([0; N], |row| *row);
    for index in 0..32 {
        columns.extend(row(index).iter());
        columns.extend(std::iter::repeat_n(0, 3 - N));
    }
    let mut out = vec![0u64; 32];
    let text = format!(
        "mov.u32 %r18, %tid.x; ld.param.u64 %d8, [p0]; ld.param.u64 %d7, [p1]; mul.wide.u32 %d6, %r18, 8;
         add.s64 %d7, %d7, %d6; mad.wide.u32 %d8, %r18, 24, %d8;
         ld.global.u64 %d1, [%d8]; ld.global.u64 %d2, [%d8+8]; ld.global.u64 %d3, [%d8+16];
         {{ {body} }} st.global.u64 [%d7], %d0; ret;"
    );
    let kernel = build(2, &text).unwrap();
    Arguments::default()
        .buffer(&mut columns)
        .buffer(&mut out)
        .launch(&kernel, 1, 32)
        .unwrap();
    out.truncate(inputs.len());
    out
}

/// The text of one of candle's PTX files, if the environment variable CANDLE_PTX names their directory.
pub fn candle_module(name: &str) -> Option<Module> {
    let Some(directory) = std::env::var_os("CANDLE_PTX") else {
        eprintln!("skipped: CANDLE_PTX does not name the directory of candle's PTX files");
        return None;
    };
    let path = std::path::Path::new(&directory)
        .join(name)
        .with_extension("ptx");
    Some(Module::parse(&std::fs::read_to_string(path).unwrap()).unwrap())
}

/// An entry of a module.
pub fn entry(module: &Module, name: &str) -> Arc<Kernel> {
    module
        .kernel(name)
        .unwrap()
        .unwrap_or_else(|| panic!("no entry {name}"))
}
