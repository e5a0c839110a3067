//! cuDNN's convolutions in short form.

use simulated_cuda::cudnn::{describing::*, entry::*, handle::*};

use super::out;

/// A convolution's sizes; those of a place are height and width.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub images: usize,
    pub inputs: usize,
    pub outputs: usize,
    pub size: [usize; 2],
    pub filter: [usize; 2],
    pub padding: [usize; 2],
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    pub groups: usize,
}

pub const PLAIN: Case = Case {
    images: 2,
    inputs: 4,
    outputs: 6,
    size: [7, 6],
    filter: [3, 2],
    padding: [0, 0],
    stride: [1, 1],
    dilation: [1, 1],
    groups: 1,
};

impl Case {
    pub fn output(&self) -> [usize; 2] {
        [0, 1].map(|axis| {
            let reach = (self.filter[axis] - 1) * self.dilation[axis] + 1;
            (self.size[axis] + 2 * self.padding[axis] - reach) / self.stride[axis] + 1
        })
    }
}

/// A handle and the descriptors of one convolution.
pub struct Call {
    pub handle: u64,
    pub input: u64,
    pub filter: u64,
    pub convolution: u64,
    pub output: u64,
}

impl Call {
    /// For contiguous tensors of this `cudnnDataType_t`.
    pub fn new(case: &Case, kind: u32, compute: u32, mode: u32) -> Call {
        let call = Call {
            handle: out(|place| unsafe { cudnnCreate(place) }),
            input: out(|place| unsafe { cudnnCreateTensorDescriptor(place) }),
            filter: out(|place| unsafe { cudnnCreateFilterDescriptor(place) }),
            convolution: out(|place| unsafe { cudnnCreateConvolutionDescriptor(place) }),
            output: out(|place| unsafe { cudnnCreateTensorDescriptor(place) }),
        };
        let pair = |pair: [usize; 2]| pair.map(|number| number as i32);
        let (images, inputs, outputs) =
            (case.images as i32, case.inputs as i32, case.outputs as i32);
        let ([height, width], [down, across]) = (pair(case.size), pair(case.filter));
        let [rows, columns] = pair(case.output());
        let groups = case.groups as i32;
        let ([p, q], [u, v], [d, e]) = (pair(case.padding), pair(case.stride), pair(case.dilation));
        let statuses = [
            cudnnSetTensor4dDescriptor(call.input, 0, kind, images, inputs, height, width),
            cudnnSetFilter4dDescriptor(
                call.filter,
                kind,
                0,
                outputs,
                inputs / groups,
                down,
                across,
            ),
            cudnnSetConvolution2dDescriptor(call.convolution, p, q, u, v, d, e, mode, compute),
            cudnnSetConvolutionGroupCount(call.convolution, groups),
            cudnnSetTensor4dDescriptor(call.output, 0, kind, images, outputs, rows, columns),
        ];
        assert_eq!(statuses, [0; 5]);
        call
    }

    pub fn workspace(&self, algorithm: u32) -> Result<usize, u32> {
        let mut bytes = usize::MAX;
        let status = unsafe {
            cudnnGetConvolutionForwardWorkspaceSize(
                self.handle,
                self.input,
                self.filter,
                self.convolution,
                self.output,
                algorithm,
                &mut bytes,
            )
        };
        if status == 0 { Ok(bytes) } else { Err(status) }
    }

    pub fn forward<T>(
        &self,
        (alpha, beta): (T, T),
        [input, filter, output]: [u64; 3],
        (algorithm, space, bytes): (u32, u64, usize),
    ) -> u32 {
        unsafe {
            cudnnConvolutionForward(
                self.handle,
                &raw const alpha as u64,
                self.input,
                input,
                self.filter,
                filter,
                self.convolution,
                algorithm,
                space,
                bytes,
                &raw const beta as u64,
                self.output,
                output,
            )
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let statuses = [
            cudnnDestroyTensorDescriptor(self.input),
            cudnnDestroyFilterDescriptor(self.filter),
            cudnnDestroyConvolutionDescriptor(self.convolution),
            cudnnDestroyTensorDescriptor(self.output),
            cudnnDestroy(self.handle),
        ];
        assert_eq!(statuses, [0; 5]);
    }
}
