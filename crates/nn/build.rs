//! Compiles the CUDA kernels, with the builder that candle's own are compiled with, where the feature `cuda` asks for them.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "cuda")]
    compile_kernels()?;
    Ok(())
}

#[cfg(feature = "cuda")]
fn compile_kernels() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=kernels");
    let kernels = cudaforge::KernelBuilder::new()
        .source_dir("kernels")
        // The headers, which are not kernels by themselves.
        .watch(["kernels"])
        .arg("-std=c++17")
        // A product and a sum are rounded apart, as on the CPU: then both give the same bits.
        .arg("-fmad=false")
        .arg("-O3");
    kernels.build_ptx()?;
    Ok(())
}
