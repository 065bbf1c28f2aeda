//! `click` and its tools, in one program: see [`bifolio_net::command`].

fn main() {
    let args: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    std::process::exit(bifolio_net::command::main(&args));
}
