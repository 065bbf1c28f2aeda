/* The S-boxes of AES as circuits: no table is looked up, so that neither time nor addresses depend on
 * data.
 *
 * The multiplicative part is Boyar and Peralta's inversion in a tower field ("A small depth-16
 * circuit for the AES S-box", 2012). The linear layers around it were factored anew for both
 * directions, and the whole was mapped to functions of three inputs, which NVIDIA's GPUs compute in
 * one instruction: 80 of them forwards and 83 backwards for 32 bytes, the addition of the key that
 * follows included, half of which costs nothing this way. The tests try all 256 bytes.
 */
#ifndef BIFOLIO_AES_SBOX_H
#define BIFOLIO_AES_SBOX_H

#include "kdef.h"

/* SubBytes of 32 bytes: word b of `s` holds their bits b. Then adds a key in the same layout. */
FN void aes_sub_bytes(PRIVATE u32 *s, LOCAL const u32 *key)
{
    u32 x0 = s[0], x1 = s[1], x2 = s[2], x3 = s[3], x4 = s[4], x5 = s[5], x6 = s[6], x7 = s[7];
    u32 k0 = key[0], k1 = key[1], k2 = key[2], k3 = key[3], k4 = key[4], k5 = key[5], k6 = key[6], k7 = key[7];
    u32 t0 = LOGIC3(x4, x7, x7, 0xc3, x4 ^ ~x7);
    u32 t1 = LOGIC3(t0, x1, x3, 0x69, t0 ^ (x1 ^ ~x3));
    u32 t2 = LOGIC3(x0, x5, x6, 0x69, x0 ^ (x5 ^ ~x6));
    u32 t3 = LOGIC3(x2, x7, x7, 0xc3, x2 ^ ~x7);
    u32 t4 = LOGIC3(x2, x4, x4, 0xc3, x2 ^ ~x4);
    u32 t5 = LOGIC3(x1, x2, x3, 0x69, x1 ^ (x2 ^ ~x3));
    u32 t6 = t5 ^ x5;
    u32 t7 = LOGIC3(t1, x5, x6, 0x69, t1 ^ (x5 ^ ~x6));
    u32 t8 = LOGIC3(t2, x7, x7, 0xc3, t2 ^ ~x7);
    u32 t9 = LOGIC3(x4, x5, x6, 0x96, x4 ^ (x5 ^ x6));
    u32 t10 = x1 ^ x7;
    u32 t11 = LOGIC3(t0, x2, x2, 0xc3, t0 ^ ~x2);
    u32 t12 = LOGIC3(t2, x1, x1, 0xc3, t2 ^ ~x1);
    u32 t13 = LOGIC3(t4, t11, x5, 0x06, ~t4 & (t11 ^ x5));
    u32 t14 = t5 ^ x6;
    u32 t15 = LOGIC3(x1, x7, t6, 0x8d, (x1 | t6) ^ (~(x7 & t6)));
    u32 t16 = LOGIC3(t14, t0, t0, 0x03, ~(t14 | t0));
    u32 t17 = LOGIC3(t7, t3, t16, 0x56, t16 ^ (t7 | t3));
    u32 t18 = LOGIC3(t14, x0, t8, 0x82, t8 & (t14 ^ ~x0));
    u32 t19 = LOGIC3(t9, x0, t5, 0x56, t5 ^ (t9 | x0));
    u32 t20 = LOGIC3(t11, x1, x1, 0xc3, t11 ^ ~x1);
    u32 t21 = LOGIC3(t12, t3, t3, 0xc3, t12 ^ ~t3);
    u32 t22 = LOGIC3(t14, t0, t13, 0x95, t13 ^ (~(t14 & t0)));
    u32 t23 = LOGIC3(x1, t2, t15, 0xa6, t15 ^ (t2 & ~x1));
    u32 t24 = LOGIC3(t17, t15, t18, 0x69, t17 ^ (t15 ^ ~t18));
    u32 t25 = LOGIC3(t1, t20, t20, 0x30, t1 & ~t20);
    u32 t26 = LOGIC3(t1, x0, t21, 0x28, t21 & (t1 ^ x0));
    u32 t27 = LOGIC3(t23, t16, t13, 0x96, t23 ^ (t16 ^ t13));
    u32 t28 = LOGIC3(t17, t25, t19, 0x69, t17 ^ (t25 ^ ~t19));
    u32 t29 = LOGIC3(t27, t28, t24, 0x54, ~t24 & (t27 | t28));
    u32 t30 = LOGIC3(t25, t26, t22, 0x96, t25 ^ (t26 ^ t22));
    u32 t31 = LOGIC3(t30, t24, t28, 0xd5, ~t28 | (t30 & t24));
    u32 t32 = LOGIC3(t27, t30, t28, 0x59, t28 ^ (t27 | ~t30));
    u32 t33 = LOGIC3(t30, t27, t29, 0xa9, t29 ^ (~(t30 | t27)));
    u32 t34 = LOGIC3(t21, t33, t33, 0x30, t21 & ~t33);
    u32 t35 = LOGIC3(t33, t1, x0, 0x06, ~t33 & (t1 ^ x0));
    u32 t36 = LOGIC3(t27, t30, t24, 0xa6, t24 ^ (t30 & ~t27));
    u32 t37 = LOGIC3(t30, t27, t31, 0x95, t31 ^ (~(t30 & t27)));
    u32 t38 = LOGIC3(t24, t27, t32, 0x72, (t24 | t32) ^ (t27 & t32));
    u32 t39 = LOGIC3(t38, t33, t1, 0x82, t1 & (t38 ^ ~t33));
    u32 t40 = t37 ^ t33;
    u32 t41 = LOGIC3(t2, x4, t38, 0x82, t38 & (t2 ^ ~x4));
    u32 t42 = LOGIC3(t20, t33, t38, 0x09, ~(t20 | (t33 ^ t38)));
    u32 t43 = LOGIC3(t7, t3, t40, 0x28, t40 & (t7 ^ t3));
    u32 t44 = LOGIC3(t28, t30, t36, 0x8d, (t28 | t36) ^ (~(t30 & t36)));
    u32 t45 = t38 & x0;
    u32 t46 = LOGIC3(t6, t37, t44, 0x09, ~(t6 | (t37 ^ t44)));
    u32 t47 = LOGIC3(t44, t38, t38, 0xc3, t44 ^ ~t38);
    u32 t48 = LOGIC3(t47, t40, t40, 0xc3, t47 ^ ~t40);
    u32 t49 = LOGIC3(t14, x0, t44, 0x82, t44 & (t14 ^ ~x0));
    u32 t50 = LOGIC3(t11, x5, t48, 0x28, t48 & (t11 ^ x5));
    u32 t51 = LOGIC3(t42, t35, t35, 0xc3, t42 ^ ~t35);
    u32 t52 = LOGIC3(t45, t49, k3, 0x69, t45 ^ (t49 ^ ~k3));
    u32 t53 = t51 ^ t39;
    u32 t54 = LOGIC3(t43, k5, k5, 0xc3, t43 ^ ~k5);
    u32 t55 = LOGIC3(t47, t14, t0, 0x06, ~t47 & (t14 ^ t0));
    u32 t56 = LOGIC3(t47, t14, t50, 0x56, t50 ^ (t47 | t14));
    u32 t57 = LOGIC3(t56, t42, k7, 0x69, t56 ^ (t42 ^ ~k7));
    u32 t58 = LOGIC3(t44, t37, t10, 0x82, t10 & (t44 ^ ~t37));
    u32 t59 = LOGIC3(t47, t0, t0, 0x03, ~(t47 | t0));
    u32 t60 = LOGIC3(t37, t12, t49, 0x59, t49 ^ (t37 | ~t12));
    u32 t61 = LOGIC3(t7, t40, t50, 0x59, t50 ^ (t7 | ~t40));
    u32 t62 = LOGIC3(t60, t58, k1, 0x69, t60 ^ (t58 ^ ~k1));
    u32 t63 = LOGIC3(t61, t41, k2, 0x96, t61 ^ (t41 ^ k2));
    u32 t64 = LOGIC3(t58, t45, t39, 0x69, t58 ^ (t45 ^ ~t39));
    u32 t65 = LOGIC3(t4, t48, t59, 0x59, t59 ^ (t4 | ~t48));
    u32 t66 = LOGIC3(t37, t2, t65, 0xa9, t65 ^ (~(t37 | t2)));
    u32 t67 = t66 ^ t34;
    u32 t68 = LOGIC3(t44, t8, t64, 0x6a, t64 ^ (t44 & t8));
    u32 t69 = LOGIC3(t67, t51, t52, 0x69, t67 ^ (t51 ^ ~t52));
    u32 t70 = LOGIC3(t68, t54, t55, 0x69, t68 ^ (t54 ^ ~t55));
    u32 t71 = LOGIC3(t65, t34, k6, 0x69, t65 ^ (t34 ^ ~k6));
    u32 t72 = LOGIC3(t64, t46, k0, 0x69, t64 ^ (t46 ^ ~k0));
    u32 t73 = LOGIC3(t66, t61, t62, 0x69, t66 ^ (t61 ^ ~t62));
    u32 t74 = t67 ^ t46;
    u32 t75 = LOGIC3(t74, t53, k4, 0x96, t74 ^ (t53 ^ k4));
    u32 t76 = LOGIC3(t56, t71, t53, 0x69, t56 ^ (t71 ^ ~t53));
    u32 t77 = LOGIC3(t74, t57, t57, 0xc3, t74 ^ ~t57);
    u32 t78 = LOGIC3(t72, t65, t60, 0x69, t72 ^ (t65 ^ ~t60));
    u32 t79 = LOGIC3(t74, t63, t68, 0x69, t74 ^ (t63 ^ ~t68));
    s[0] = t78;
    s[1] = t73;
    s[2] = t79;
    s[3] = t69;
    s[4] = t75;
    s[5] = t70;
    s[6] = t76;
    s[7] = t77;
}

/* Its inverse, and then the key. */
FN void aes_inv_sub_bytes(PRIVATE u32 *s, LOCAL const u32 *key)
{
    u32 x0 = s[0], x1 = s[1], x2 = s[2], x3 = s[3], x4 = s[4], x5 = s[5], x6 = s[6], x7 = s[7];
    u32 k0 = key[0], k1 = key[1], k2 = key[2], k3 = key[3], k4 = key[4], k5 = key[5], k6 = key[6], k7 = key[7];
    u32 t0 = LOGIC3(x0, x1, x1, 0xc3, x0 ^ ~x1);
    u32 t1 = LOGIC3(x4, x6, x6, 0xc3, x4 ^ ~x6);
    u32 t2 = x2 ^ x7;
    u32 t3 = LOGIC3(x3, x4, x4, 0xc3, x3 ^ ~x4);
    u32 t4 = x6 ^ x7;
    u32 t5 = LOGIC3(t3, x1, x2, 0x69, t3 ^ (x1 ^ ~x2));
    u32 t6 = LOGIC3(x3, x6, x6, 0xc3, x3 ^ ~x6);
    u32 t7 = LOGIC3(t1, x5, x5, 0xc3, t1 ^ ~x5);
    u32 t8 = LOGIC3(t3, x0, t1, 0x28, t1 & (t3 ^ x0));
    u32 t9 = LOGIC3(t6, x0, x7, 0x69, t6 ^ (x0 ^ ~x7));
    u32 t10 = LOGIC3(t0, t6, t6, 0xc3, t0 ^ ~t6);
    u32 t11 = LOGIC3(t4, t0, t0, 0xc3, t4 ^ ~t0);
    u32 t12 = LOGIC3(t10, t2, t2, 0xc3, t10 ^ ~t2);
    u32 t13 = LOGIC3(x4, x7, x6, 0x28, x6 & (x4 ^ x7));
    u32 t14 = LOGIC3(t0, t1, t1, 0xc3, t0 ^ ~t1);
    u32 t15 = LOGIC3(t4, t3, t3, 0xc3, t4 ^ ~t3);
    u32 t16 = LOGIC3(t6, x1, x5, 0x96, t6 ^ (x1 ^ x5));
    u32 t17 = LOGIC3(t10, t3, x5, 0x09, ~(t10 | (t3 ^ x5)));
    u32 t18 = LOGIC3(t2, x5, t14, 0x82, t14 & (t2 ^ ~x5));
    u32 t19 = LOGIC3(t11, t7, x2, 0x06, ~t11 & (t7 ^ x2));
    u32 t20 = LOGIC3(t19, t12, t13, 0x69, t19 ^ (t12 ^ ~t13));
    u32 t21 = LOGIC3(t3, t14, t2, 0x06, ~t3 & (t14 ^ t2));
    u32 t22 = LOGIC3(t0, t3, t16, 0x28, t16 & (t0 ^ t3));
    u32 t23 = LOGIC3(t4, t9, t21, 0x59, t21 ^ (t4 | ~t9));
    u32 t24 = LOGIC3(t18, x0, x3, 0x96, t18 ^ (x0 ^ x3));
    u32 t25 = LOGIC3(t15, t5, t21, 0x56, t21 ^ (t15 | t5));
    u32 t26 = LOGIC3(t22, t7, x0, 0x06, ~t22 & (t7 ^ x0));
    u32 t27 = LOGIC3(t23, t22, t17, 0x69, t23 ^ (t22 ^ ~t17));
    u32 t28 = LOGIC3(t23, t24, t19, 0x69, t23 ^ (t24 ^ ~t19));
    u32 t29 = t25 ^ t20;
    u32 t30 = LOGIC3(t27, t29, t28, 0x57, ~(t28 & (t27 | t29)));
    u32 t31 = LOGIC3(t25, t26, t8, 0x69, t25 ^ (t26 ^ ~t8));
    u32 t32 = LOGIC3(t29, t31, t30, 0xa6, t30 ^ (t31 & ~t29));
    u32 t33 = LOGIC3(t29, t31, t28, 0xa9, t28 ^ (~(t29 | t31)));
    u32 t34 = LOGIC3(t29, t31, t27, 0xa9, t27 ^ (~(t29 | t31)));
    u32 t35 = LOGIC3(t3, x0, t32, 0x28, t32 & (t3 ^ x0));
    u32 t36 = LOGIC3(t28, t31, t27, 0xa8, t27 & (t28 | t31));
    u32 t37 = LOGIC3(t31, t27, t33, 0x27, (t31 | t33) ^ (t27 | ~t33));
    u32 t38 = LOGIC3(t29, t28, t34, 0x27, (t29 | t34) ^ (t28 | ~t34));
    u32 t39 = t37 & t14;
    u32 t40 = t32 ^ t38;
    u32 t41 = LOGIC3(t12, t37, t38, 0x06, ~t12 & (t37 ^ t38));
    u32 t42 = t40 & t16;
    u32 t43 = LOGIC3(t14, x5, t38, 0x82, t38 & (t14 ^ ~x5));
    u32 t44 = LOGIC3(t2, x5, t37, 0x82, t37 & (t2 ^ ~x5));
    u32 t45 = LOGIC3(t39, k5, k5, 0xc3, t39 ^ ~k5);
    u32 t46 = LOGIC3(t42, t43, k7, 0x69, t42 ^ (t43 ^ ~k7));
    u32 t47 = LOGIC3(t31, t29, t36, 0x59, t36 ^ (t31 | ~t29));
    u32 t48 = t47 ^ t37;
    u32 t49 = LOGIC3(t3, t37, t38, 0x06, ~t3 & (t37 ^ t38));
    u32 t50 = LOGIC3(t0, t3, t40, 0x28, t40 & (t0 ^ t3));
    u32 t51 = LOGIC3(t32, t1, t41, 0x95, t41 ^ (~(t32 & t1)));
    u32 t52 = t48 ^ t40;
    u32 t53 = LOGIC3(t52, t15, t15, 0x30, t52 & ~t15);
    u32 t54 = LOGIC3(t47, t32, t9, 0x28, t9 & (t47 ^ t32));
    u32 t55 = LOGIC3(t7, x2, t48, 0x28, t48 & (t7 ^ x2));
    u32 t56 = LOGIC3(t1, x7, t47, 0x28, t47 & (t1 ^ x7));
    u32 t57 = LOGIC3(x4, x7, t47, 0x28, t47 & (x4 ^ x7));
    u32 t58 = LOGIC3(t38, t10, t56, 0x95, t56 ^ (~(t38 & t10)));
    u32 t59 = LOGIC3(t50, t45, t41, 0x69, t50 ^ (t45 ^ ~t41));
    u32 t60 = LOGIC3(t4, t47, t32, 0x06, ~t4 & (t47 ^ t32));
    u32 t61 = LOGIC3(t49, t39, k0, 0x69, t49 ^ (t39 ^ ~k0));
    u32 t62 = t50 ^ t51;
    u32 t63 = LOGIC3(t53, t42, t35, 0x69, t53 ^ (t42 ^ ~t35));
    u32 t64 = t53 ^ t54;
    u32 t65 = LOGIC3(t35, t57, t44, 0x69, t35 ^ (t57 ^ ~t44));
    u32 t66 = LOGIC3(t55, t60, t39, 0x96, t55 ^ (t60 ^ t39));
    u32 t67 = LOGIC3(t42, t65, t58, 0x69, t42 ^ (t65 ^ ~t58));
    u32 t68 = LOGIC3(t11, t48, t60, 0x59, t60 ^ (t11 | ~t48));
    u32 t69 = LOGIC3(t5, t52, t62, 0xa6, t62 ^ (t52 & ~t5));
    u32 t70 = LOGIC3(t64, t62, t62, 0xc3, t64 ^ ~t62);
    u32 t71 = LOGIC3(t65, t43, k3, 0x69, t65 ^ (t43 ^ ~k3));
    u32 t72 = LOGIC3(t64, t67, t59, 0x69, t64 ^ (t67 ^ ~t59));
    u32 t73 = LOGIC3(t68, t54, k6, 0x96, t68 ^ (t54 ^ k6));
    u32 t74 = LOGIC3(t70, t46, t46, 0xc3, t70 ^ ~t46);
    u32 t75 = t68 ^ t61;
    u32 t76 = LOGIC3(t69, t63, k1, 0x96, t69 ^ (t63 ^ k1));
    u32 t77 = t70 ^ t55;
    u32 t78 = LOGIC3(t69, t71, t66, 0x69, t69 ^ (t71 ^ ~t66));
    u32 t79 = LOGIC3(t77, t44, k4, 0x96, t77 ^ (t44 ^ k4));
    u32 t80 = LOGIC3(t67, t73, t51, 0x69, t67 ^ (t73 ^ ~t51));
    u32 t81 = LOGIC3(t77, t35, t56, 0x96, t77 ^ (t35 ^ t56));
    u32 t82 = LOGIC3(t81, t43, k2, 0x96, t81 ^ (t43 ^ k2));
    s[0] = t75;
    s[1] = t76;
    s[2] = t82;
    s[3] = t78;
    s[4] = t79;
    s[5] = t72;
    s[6] = t80;
    s[7] = t74;
}

#endif
