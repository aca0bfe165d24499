"""What runs on the far side of the boundary: the zygote, the confinement, and the loop that runs generated code.

Promises to use the standard library only and to import nothing of Sonde: the fork server loads this folder as a top-level
package called `worker`, without site-packages. Promises no safety by itself: generated code shares this process and may
rewrite every line of it. What holds is what `confine` asked of the kernel, and what the supervisor checks from outside.
"""
